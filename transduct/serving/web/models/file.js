// Choosing a file: by a button, by dropping or by pasting it.

import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { Icon } from "../parts.js";
import { say } from "../words.js";

/**
 * The file that was chosen last, and the control that chooses it.
 * @param {File[]} given  files that were dropped or pasted anywhere
 * @param {() => void} taken
 * @returns {[File|null, (file: File) => void]}
 */
export function useFile(given, taken) {
  const [file, choose] = useState(null);
  useEffect(() => {
    if (!given.length) return;
    choose(given[0]);
    taken();
  }, [given]);
  return [file, choose];
}

/** An address of a file, as long as it is shown. */
export function useAddress(file) {
  const url = useMemo(() => (file ? URL.createObjectURL(file) : ""), [file]);
  useEffect(() => () => URL.revokeObjectURL(url), [url]);
  return url;
}

/** @param {{kind: "picture"|"sound", file: File|null, choose: (file: File) => void}} props */
export function FileChoice({ kind, file, choose, children }) {
  const input = useRef(null);
  const accept = kind === "picture" ? "image/*" : "audio/*";
  return html`<section class=${file ? "row" : "card drop"} aria-label=${say(`file.${kind}`)}>
    ${!file && html`<${Icon} name="upload" /><p>${say(`file.${kind}Hint`)}</p>`}
    <button type="button" class="chip" onClick=${() => input.current.click()}>
      ${say(file ? `file.${kind}Other` : `file.${kind}`)}
    </button>
    ${children}
    ${file && html`<span class="note said">${file.name}</span>`}
    <input ref=${input} type="file" hidden accept=${accept} aria-label=${say(`file.${kind}`)}
      onChange=${(event) => event.target.files[0] && choose(event.target.files[0])} />
  </section>`;
}
