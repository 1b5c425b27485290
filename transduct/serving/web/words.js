// Everything that the page says, in English and Korean. Keys with a dot belong to one part of it.

import { state } from "./store.js";

const en = {
  "app.tabs": "Pages",
  "app.text": "Text",
  "app.files": "Files",
  "app.tongue": "한국어",
  "app.key": "Key",
  "app.loading": "Asking the server",
  "text.source": "Text",
  "text.translation": "Translation",
  "text.hint": "Write or paste text",
  "inside.open": "Look inside",
  "inside.missing": "This part of the page cannot be loaded.",
};

/** @type {typeof en} */
const ko = {
  "app.tabs": "페이지",
  "app.text": "텍스트",
  "app.files": "파일",
  "app.tongue": "English",
  "app.key": "키",
  "app.loading": "서버에 묻는 중",
  "text.source": "원문",
  "text.translation": "번역",
  "text.hint": "글을 쓰거나 붙여 넣으세요",
  "inside.open": "내부 보기",
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
