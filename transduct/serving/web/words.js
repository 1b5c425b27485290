// Everything that the page says, in English and Korean. Keys with a dot belong to one part of it.

import { state } from "./store.js";

export const WORDS = {
  "app.tabs": ["Pages", "페이지"],
  "app.text": ["Text", "텍스트"],
  "app.files": ["Files", "파일"],
  "app.tongue": ["한국어", "English"],
  "app.key": ["Key", "키"],
  "app.loading": ["Asking the server …", "서버에 묻는 중 …"],
  "app.warming": ["The model is getting ready. The first answers take longer.",
    "모델을 준비하는 중입니다. 첫 답은 더 오래 걸립니다."],
  "app.copied": ["Copied", "복사됨"],
  "app.keep": ["Remember text and choices on this device", "이 기기에 글과 설정 기억하기"],
  "key.label": ["Key for this server", "이 서버의 키"],
  "key.use": ["Use", "사용"],
  "text.source": ["Text", "원문"],
  "text.translation": ["Translation", "번역"],
  "text.hint": ["Write or paste text", "글을 쓰거나 붙여 넣으세요"],
  "text.from": ["Language of the text", "원문 언어"],
  "text.to": ["Language of the translation", "번역 언어"],
  "text.swap": ["Swap languages", "언어 바꾸기"],
  "text.detect": ["Detect language", "언어 감지"],
  "text.detected": ["Detected: {language}", "감지됨: {language}"],
  "text.recent": ["Last used", "최근 사용"],
  "text.all": ["All languages", "모든 언어"],
  "text.model": ["Model", "모델"],
  "text.anyModel": ["by languages", "언어에 따라"],
  "text.characters": ["{n} characters", "{n}자"],
  "text.clear": ["Clear text", "글 지우기"],
  "text.copy": ["Copy", "복사"],
  "text.speak": ["Speak", "소리 내어 읽기"],
  "text.link": ["Copy link with this text", "이 글이 담긴 링크 복사"],
  "text.stop": ["Stop", "중지"],
  "text.fact": ["1 sentence, {seconds} s", "문장 1개, {seconds}초"],
  "text.facts": ["{n} sentences, {seconds} s", "문장 {n}개, {seconds}초"],
  "text.underline": ["Underline unsure words", "불확실한 단어에 밑줄"],
  "text.sure": ["Probability {percent} %", "확률 {percent} %"],
  "text.asking": ["Asking the model …", "모델에 묻는 중 …"],
  "text.instead": ["Words in this place", "이 자리에 올 수 있는 단어"],
  "others.title": ["Other translations", "다른 번역"],
  "others.score": ["Score: the sum of the log-probabilities of all tokens",
    "점수: 모든 토큰의 로그 확률의 합"],
  "request.title": ["As a request", "요청으로 보기"],
  "files.hint": ["Drop files here, paste them, or choose them.",
    "파일을 여기에 놓거나 붙여 넣거나 고르세요."],
  "files.choose": ["Choose files", "파일 고르기"],
  "files.list": ["Files", "파일"],
  "files.sending": ["Sending {name}", "{name} 보내는 중"],
  "files.translating": ["Translating {name}", "{name} 번역하는 중"],
  "files.done": ["{name} is ready", "{name} 준비됨"],
  "files.download": ["Save {name}", "{name} 저장"],
  "files.remove": ["Remove {name}", "{name} 제거"],
  "trouble.key": ["This server asks for a key.", "이 서버에는 키가 필요합니다."],
  "trouble.wrongKey": ["The server does not know this key.", "서버가 모르는 키입니다."],
  "trouble.away": ["The server does not answer. The page tries again by itself.",
    "서버가 응답하지 않습니다. 페이지가 스스로 다시 시도합니다."],
  "trouble.ending": ["The server is starting or ending. The page tries again by itself.",
    "서버가 시작하거나 끝나는 중입니다. 페이지가 스스로 다시 시도합니다."],
  "trouble.busy": ["The server has much to do. The page tries again by itself.",
    "서버가 바쁩니다. 페이지가 스스로 다시 시도합니다."],
  "trouble.broken": ["The model does not work. The server's log says why.",
    "모델이 작동하지 않습니다. 이유는 서버의 로그에 있습니다."],
  "trouble.refused": ["The server refuses this.", "서버가 거절했습니다."],
  "trouble.stopped": ["Stopped.", "중지했습니다."],
  "model.text": ["Text for the model", "모델에 줄 글"],
  "model.ask": ["Ask", "묻기"],
  "model.working": ["The model works …", "모델이 일하는 중 …"],
  "model.save": ["Save", "저장"],
  "table.open": ["Numbers as a table", "숫자를 표로 보기"],
  "table.rows": ["rows {first} to {last} of {count}", "{count}행 중 {first}–{last}행"],
  "table.before": ["Rows before", "이전 행"],
  "table.next": ["Next rows", "다음 행"],
  "table.row": ["row", "행"],
  "label.title": ["Labels and their probabilities", "레이블과 확률"],
  "language.prompt": ["Beginning of the text", "글의 시작"],
  "language.go": ["Go on", "이어 쓰기"],
  "language.length": ["Tokens", "토큰 수"],
  "language.temperature": ["Temperature", "온도"],
  "language.more": ["What the model writes", "모델이 쓰는 글"],
  "language.keep": ["Keep this", "이대로 두기"],
  "file.picture": ["Choose a picture", "그림 고르기"],
  "file.pictureOther": ["Another picture", "다른 그림"],
  "file.pictureHint": ["Drop a picture here, paste it, or choose it.",
    "그림을 여기에 놓거나 붙여 넣거나 고르세요."],
  "file.sound": ["Choose a recording", "녹음 고르기"],
  "file.soundOther": ["Another recording", "다른 녹음"],
  "file.soundHint": ["Drop a recording here, choose it, or record one.",
    "녹음을 여기에 놓거나 고르거나 직접 녹음하세요."],
  "picture.looked": ["Where the model looked: the clear parts", "모델이 본 곳: 밝은 부분"],
  "picture.view": ["Weights", "가중치"],
  "picture.head": ["Head", "헤드"],
  "picture.mean": ["mean", "평균"],
  "detection.threshold": ["Least score", "최소 점수"],
  "detection.title": ["Objects", "물체"],
  "detection.nothing": ["Nothing found. Try a lower score.", "찾은 것이 없습니다. 점수를 낮춰 보세요."],
  "detection.hint": ["Choose an object to see where the model looked for it.",
    "물체를 고르면 모델이 어디를 보았는지 나타납니다."],
  "codes.original": ["As the model read it", "모델이 읽은 그림"],
  "codes.rebuilt": ["Rebuilt from its codes", "코드로 다시 만든 그림"],
  "codes.grid": ["Its codes, of which {count} differ", "그림의 코드, 서로 다른 것 {count}개"],
  "codes.cells": ["The grid of codes", "코드의 격자"],
  "painting.go": ["Paint", "그리기"],
  "painting.drawn": ["code {count}: {code}", "코드 {count}: {code}"],
  "painting.words": ["How much each word was looked at", "각 단어를 본 정도"],
  "painting.cell": ["Part of the picture", "그림의 부분"],
  "painting.hint": ["Choose a word to see where it was looked at. Point at the picture to see the words of a part.",
    "단어를 고르면 어디에서 보았는지 나타납니다. 그림을 가리키면 그 부분의 단어가 나타납니다."],
  "speech.record": ["Record", "녹음"],
  "speech.stop": ["Stop recording", "녹음 끝내기"],
  "speech.silent": ["The microphone cannot be used.", "마이크를 쓸 수 없습니다."],
  "speech.words": ["Words where they were heard", "들린 곳의 단어"],
  "speech.word": ["Word", "단어"],
  "speech.seconds": ["Seconds", "초"],
  "speech.nothing": ["No speech was found.", "말소리를 찾지 못했습니다."],
  "speech.wave": ["Loudness over time", "시간에 따른 크기"],
  "speech.spectrum": ["Frequencies over time", "시간에 따른 주파수"],
  "inside.title": ["Look inside", "내부 보기"],
  "inside.missing": ["This part of the page cannot be loaded.", "페이지의 이 부분을 불러올 수 없습니다."],
};

/**
 * A function that says one of some texts in the language of the page; `{name}` stands for a value.
 * @param {Record<string, [string, string]>} texts  in English and Korean
 */
export const saying = (texts) => (key, values = {}) => {
  const text = texts[key]?.[state().tongue === "ko" ? 1 : 0] ?? key;
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
};

export const say = saying(WORDS);

/** What went wrong, in words. @param {import("./server.js").Trouble} trouble */
export const reason = ({ message, kind = "refused" }) => (kind === "refused" && message) || say(`trouble.${kind}`);

/** The name of a language in the language of the page. */
export function nameOf(code) {
  try {
    return new Intl.DisplayNames([state().tongue], { type: "language" }).of(code);
  } catch {
    return code;
  }
}
