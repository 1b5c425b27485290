// Reading aloud, by voices of this device alone: others would send the text elsewhere.

import { useEffect, useState } from "../vendor/preact.js";

const synthesis = globalThis.speechSynthesis;

/** A function that reads a text aloud or stops; null where no local voice speaks the language. */
export function useVoice(language) {
  const [voices, set] = useState([]);
  useEffect(() => {
    if (!synthesis) return undefined;
    const read = () => set(synthesis.getVoices().filter(({ localService }) => localService));
    read();
    synthesis.addEventListener("voiceschanged", read);
    return () => synthesis.removeEventListener("voiceschanged", read);
  }, []);
  const voice = voices.find(({ lang }) => lang.split(/[-_]/)[0] === language.split("-")[0]);
  if (!voice) return null;
  return (text) => {
    if (synthesis.speaking) return synthesis.cancel();
    const spoken = Object.assign(new SpeechSynthesisUtterance(text), { voice, lang: voice.lang });
    return synthesis.speak(spoken);
  };
}
