// The language of the views, and the names of tokens in it.

import { createContext, useContext, useMemo } from "../vendor/preact.js";
import { WORDS } from "./words.js";

/** The language of the page: "en" or "ko". */
export const Tongue = createContext("en");

/** A function that says a text of `words.js`; `{name}` stands for a value. */
export function useSay() {
  const tongue = useContext(Tongue);
  return useMemo(() => {
    const words = WORDS[tongue];
    const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
    return (key, values = {}) => fill(words[key] ?? key, values);
  }, [tongue]);
}

/** A function that names a token: special ones by what they are, bytes by their number. */
export function useLabel() {
  const say = useSay();
  return useMemo(() => ({ text, special, byte }) => {
    if (special) return `token.${special}` in WORDS.en ? say(`token.${special}`) : special;
    if (byte) return say("token.byte", { byte });
    return text.trim() ? text : "␣"; // white space has a name too
  }, [say]);
}
