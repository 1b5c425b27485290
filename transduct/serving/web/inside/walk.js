// A walk of six steps through one sentence: each opens a view and says what is seen there.

import { html } from "../vendor/preact.js";
import { state } from "../store.js";
import { label, say } from "./words.js";

const COURSE = "https://github.com/transduct/transduct/blob/main/docs/";
const STEPS = [
  { name: "pieces", page: "learn", en: "words-before-the-first-equation", ko: "수식을-보기-전에" },
  { name: "order", view: "positions", page: "learn", en: "positions", ko: "위치-인코딩" },
  { name: "heads", view: "attention", look: { kind: "encoder", layer: 0 }, page: "learn", en: "several-heads", ko: "멀티-헤드" },
  { name: "cross", view: "attention", look: { kind: "cross", layer: 99 }, page: "learn", en: "the-whole-model", ko: "모델-전체" },
  { name: "next", view: "next", page: "learn", en: "the-next-word", ko: "다음-단어" },
  { name: "beam", view: "beam", page: "equations", en: "29-the-length-penalty-of-beam-search", ko: "29-빔-탐색의-길이-벌점" },
];

/** The steps that a model has views for. */
export const walkOf = ({ views, maps }) => STEPS.filter(({ name, view }) =>
  (!view || views.includes(view)) && (name !== "cross" || maps.some((map) => map.name.endsWith("cross")))
  && (name !== "heads" || maps.some((map) => map.name.startsWith("encoder"))));

/**
 * @param {object} given
 * @param {number} given.at  the number of the step
 * @param {(at: number|null) => void} given.onGo
 */
export function Walk({ sentence, steps, at, onGo }) {
  const { tongue } = state();
  const { name, page, [tongue]: place } = steps[at];
  const file = `${page}${tongue === "ko" ? ".ko" : ""}.md`;
  const source = sentence.sides[sentence.sides.source.pieces.length ? "source" : "read"].pieces;
  return html`
    <section class="walk" aria-live="polite">
      <h2>${say("walk.title", { step: at + 1, count: steps.length, title: say(`walk.${name}.title`) })}</h2>
      <p>${say(`walk.${name}`)} <a href=${`${COURSE}${file}#${place}`} rel="noopener" target="_blank">${say("walk.more")}</a></p>
      ${name === "pieces" && html`
        <ol class="chips">${source.map((piece) => html`<li key=${piece.first} dir="auto">${label(piece)}</li>`)}</ol>`}
      <p class="buttons">
        <button type="button" disabled=${at === 0} onClick=${() => onGo(at - 1)}>← ${say("walk.before")}</button>
        ${at + 1 < steps.length && html`
          <button type="button" class="strong" onClick=${() => onGo(at + 1)}>${say("walk.after")} →</button>`}
        <button type="button" onClick=${() => onGo(null)}>${say("walk.end")}</button>
      </p>
    </section>
  `;
}
