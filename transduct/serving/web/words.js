// Everything that the page says, in English and Korean. Keys with a dot belong to one part of it.

import { state } from "./store.js";

const en = {
  "app.tabs": "Pages",
  "app.text": "Text",
  "app.files": "Files",
  "app.tongue": "한국어",
  "app.key": "Key",
  "app.loading": "Asking the server …",
  "app.copied": "Copied",
  "app.keep": "Remember text and choices on this device",
  "key.label": "Key for this server",
  "key.use": "Use",
  "text.source": "Text",
  "text.translation": "Translation",
  "text.hint": "Write or paste text",
  "text.from": "Language of the text",
  "text.to": "Language of the translation",
  "text.swap": "Swap languages",
  "text.detect": "Detect language",
  "text.detected": "Detected: {language}",
  "text.recent": "Last used",
  "text.all": "All languages",
  "text.model": "Model",
  "text.anyModel": "by languages",
  "text.characters": "{n} characters",
  "text.clear": "Clear text",
  "text.copy": "Copy",
  "text.speak": "Speak",
  "text.link": "Copy link with this text",
  "text.stop": "Stop",
  "text.fact": "1 sentence, {seconds} s",
  "text.facts": "{n} sentences, {seconds} s",
  "text.underline": "Underline unsure words",
  "text.sure": "Probability {percent} %",
  "text.asking": "Asking the model …",
  "text.instead": "Words in this place",
  "others.title": "Other translations",
  "others.score": "Score: the sum of the log-probabilities of all tokens",
  "request.title": "As a request",
  "files.hint": "Drop files here, paste them, or choose them.",
  "files.choose": "Choose files",
  "files.list": "Files",
  "files.sending": "Sending {name}",
  "files.translating": "Translating {name}",
  "files.done": "{name} is ready",
  "files.download": "Save {name}",
  "files.remove": "Remove {name}",
  "trouble.key": "This server asks for a key.",
  "trouble.wrongKey": "The server does not know this key.",
  "trouble.away": "The server does not answer. The page tries again by itself.",
  "trouble.ending": "The server is starting or ending. The page tries again by itself.",
  "trouble.busy": "The server has much to do. The page tries again by itself.",
  "trouble.broken": "The model does not work. The server's log says why.",
  "trouble.refused": "The server refuses this.",
  "trouble.stopped": "Stopped.",
  "inside.title": "Look inside",
  "inside.missing": "This part of the page cannot be loaded.",
};

/** @type {typeof en} */
const ko = {
  "app.tabs": "페이지",
  "app.text": "텍스트",
  "app.files": "파일",
  "app.tongue": "English",
  "app.key": "키",
  "app.loading": "서버에 묻는 중 …",
  "app.copied": "복사됨",
  "app.keep": "이 기기에 글과 설정 기억하기",
  "key.label": "이 서버의 키",
  "key.use": "사용",
  "text.source": "원문",
  "text.translation": "번역",
  "text.hint": "글을 쓰거나 붙여 넣으세요",
  "text.from": "원문 언어",
  "text.to": "번역 언어",
  "text.swap": "언어 바꾸기",
  "text.detect": "언어 감지",
  "text.detected": "감지됨: {language}",
  "text.recent": "최근 사용",
  "text.all": "모든 언어",
  "text.model": "모델",
  "text.anyModel": "언어에 따라",
  "text.characters": "{n}자",
  "text.clear": "글 지우기",
  "text.copy": "복사",
  "text.speak": "소리 내어 읽기",
  "text.link": "이 글이 담긴 링크 복사",
  "text.stop": "중지",
  "text.fact": "문장 1개, {seconds}초",
  "text.facts": "문장 {n}개, {seconds}초",
  "text.underline": "불확실한 단어에 밑줄",
  "text.sure": "확률 {percent} %",
  "text.asking": "모델에 묻는 중 …",
  "text.instead": "이 자리에 올 수 있는 단어",
  "others.title": "다른 번역",
  "others.score": "점수: 모든 토큰의 로그 확률의 합",
  "request.title": "요청으로 보기",
  "files.hint": "파일을 여기에 놓거나 붙여 넣거나 고르세요.",
  "files.choose": "파일 고르기",
  "files.list": "파일",
  "files.sending": "{name} 보내는 중",
  "files.translating": "{name} 번역하는 중",
  "files.done": "{name} 준비됨",
  "files.download": "{name} 저장",
  "files.remove": "{name} 제거",
  "trouble.key": "이 서버에는 키가 필요합니다.",
  "trouble.wrongKey": "서버가 모르는 키입니다.",
  "trouble.away": "서버가 응답하지 않습니다. 페이지가 스스로 다시 시도합니다.",
  "trouble.ending": "서버가 시작하거나 끝나는 중입니다. 페이지가 스스로 다시 시도합니다.",
  "trouble.busy": "서버가 바쁩니다. 페이지가 스스로 다시 시도합니다.",
  "trouble.broken": "모델이 작동하지 않습니다. 이유는 서버의 로그에 있습니다.",
  "trouble.refused": "서버가 거절했습니다.",
  "trouble.stopped": "중지했습니다.",
  "inside.title": "내부 보기",
  "inside.missing": "페이지의 이 부분을 불러올 수 없습니다.",
};

export const WORDS = { en, ko };

/**
 * A text of the page in its language; `{name}` stands for a value.
 * @param {keyof typeof en} key
 * @param {Record<string, string|number>} values
 */
export function say(key, values = {}) {
  const text = WORDS[state().tongue][key] ?? en[key] ?? key;
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

/** The name of a language in the language of the page. */
export function nameOf(code) {
  try {
    return new Intl.DisplayNames([state().tongue], { type: "language" }).of(code);
  } catch {
    return code;
  }
}
