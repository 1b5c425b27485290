// What the model would have said in a word's place.

import { html, useEffect, useLayoutEffect, useRef } from "../vendor/preact.js";
import { Alert, led, percent } from "../parts.js";
import { ask } from "../server.js";
import { say } from "../words.js";
import { useAnswer } from "../work.js";
import { wordAt } from "./sentences.js";

/**
 * @param {object} given
 * @param {string} given.text  a sentence
 * @param {string} given.target  its translation
 * @param {number} given.at  where the word begins
 * @param {object} given.fields  languages and model; see `fieldsOf`
 * @param {(text: string, prefix: string) => void} given.choose
 */
export function Alternatives({ text, target, at, fields, language, anchor, choose, close }) {
  const list = useRef(null);
  const { to, from, model } = fields;
  const body = { text, target, place: at, target_language: to, from, model };
  const { answer, trouble } = useAnswer((signal) => ask("v1/alternatives", body, { signal }), [text, target, at]);
  const rows = answer ? rowsOf(answer.alternatives, at, language) : [];
  useLayoutEffect(() => place(list.current, anchor), [anchor, answer, trouble]);
  useLayoutEffect(() => (list.current.querySelector("[role=option]") ?? list.current).focus(), [answer]);
  useEffect(() => {
    const outside = ({ target: pressed }) => list.current?.contains(pressed) || close();
    document.addEventListener("pointerdown", outside);
    return () => document.removeEventListener("pointerdown", outside);
  }, []);
  const key = (event) => {
    const options = [...list.current.querySelectorAll("[role=option]")];
    const to = led(event, options.indexOf(document.activeElement), options.length);
    if (event.key === "Escape" || event.key === "Tab") close(true);
    else if (event.key === "Enter" || event.key === " ") document.activeElement.click();
    else if (to === undefined) return;
    else options[to]?.focus();
    event.preventDefault();
    event.stopPropagation();
  };
  return html`<div class="popup" ref=${list} tabindex="-1" onKeyDown=${key} lang="" dir="auto">
    ${!answer && !trouble && html`<p role="status">${say("text.asking")}</p>`}
    ${trouble && html`<${Alert} trouble=${trouble} />`}
    ${rows.length > 0 && html`<div role="listbox" aria-label=${say("text.instead")} tabindex="-1">
      ${rows.map((row) => html`<div role="option" tabindex="-1" lang=${language} dir="auto"
        aria-selected=${row.text === target} onClick=${() => choose(row.text, row.prefix)}>
        <span class="said">${row.word}</span><span class="number">${percent(row.p)}</span>
      </div>`)}
    </div>`}
  </div>`;
}

/** One row a word: pieces of words that lead to the same word are added. */
function rowsOf(alternatives, at, language) {
  const rows = new Map();
  for (const { text, probability: p } of alternatives) {
    const word = wordAt(text, at, language).trim();
    const prefix = text.slice(0, at + wordAt(text, at, language).length);
    if (!word) continue;
    if (rows.has(prefix)) rows.get(prefix).p += p;
    else rows.set(prefix, { word, prefix, text, p });
  }
  return [...rows.values()];
}

/** Put the list below the word, within its pane. */
function place(list, anchor) {
  const width = list.offsetParent?.clientWidth ?? 0;
  list.style.left = `${Math.max(0, Math.min(anchor.offsetLeft, width - list.offsetWidth - 8))}px`;
  list.style.top = `${anchor.offsetTop + anchor.offsetHeight + 2}px`;
}
