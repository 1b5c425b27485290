// A text, the picture that a model paints of it, and the words that each part of it looked at.

import { html, useState } from "../vendor/preact.js";
import { Bars, Field, Save, Slider } from "../parts.js";
import { ask, events } from "../server.js";
import { NumberTable } from "../table.js";
import { say } from "../words.js";
import { Progress, useAnswer } from "../work.js";
import { useAddress } from "./file.js";
import { bytesOf, unpacked } from "../inside/numbers.js";
import { Heat } from "./heat.js";

/** @param {{model: import("./pages.js").Model}} props */
export function Page({ model }) {
  const [text, write] = useState("");
  const [asked, paint] = useState(null);
  const [word, pick] = useState(-1);
  const [cell, point] = useState(0);
  const [drawn, draw] = useState({ codes: [] }); // the picture so far
  const found = useAnswer(asked && (async (signal) => {
    const question = { inputs: [asked.text], model: model.name, options: { seed: asked.seed }, stream: true };
    for await (const event of events("v1/predict", question, { signal })) {
      const blob = new Blob([bytesOf(event.picture)], { type: "image/png" });
      draw({ codes: event.codes ?? [], blob });
      if (!event.codes) return blob;
    }
  }), [asked, model]);
  const url = useAddress(drawn.blob);
  const looked = useAnswer(found.answer && ((signal) =>
    ask("v1/inspect", { text: asked.text, model: model.name, view: "panels", seed: asked.seed }, { signal })), [found.answer]);
  const panels = (looked.answer?.panels ?? []).map((one) => ({ ...one, title: one.title.replace(/^[▁Ġ]/, "") }));
  const maps = panels.map(unpacked);
  const side = panels[0]?.shape[1] ?? 1;
  const go = () => {
    pick(-1);
    draw({ codes: [] });
    paint({ text, seed: (asked?.seed ?? 0) + 1 });
  };
  return html`
    <${Field} name=${say("model.text")} text=${text} write=${write} />
    <div class="row"><button type="button" class="chip" onClick=${go}>${say("painting.go")}</button></div>
    <${Progress} ...${found} />
    ${url && html`<div class="beside">
      <figure class="card looked"><div class="over" onPointerMove=${(event) => point(cellAt(event, side))}>
        <img class="pixels" src=${url} alt=${asked.text} />
        ${drawn.codes.length > 0 && html`<p class="drawing number">${say("painting.drawn", { count: drawn.codes.length, code: drawn.codes.at(-1) })}</p>`}
        ${word >= 0 && maps[word] && html`<${Heat} weights=${maps[word]} columns=${side} name=${panels[word].title} />`}</div>
        <div class="row">${found.answer && html`<${Save} href=${url} name="painting.png" />`}</div>
      </figure>
      ${maps.length > 0 && html`<section class="card" aria-label=${say("painting.words")}>
        <p class="note">${say("painting.hint")}</p>
        <div class="row">${panels.map(({ title }, n) => html`<button type="button" class="chip" aria-pressed=${n === word}
          onClick=${() => pick(n === word ? -1 : n)}>${title}</button>`)}</div>
        <${Slider} name=${say("painting.cell")} max=${side * side - 1} value=${cell} choose=${point} shown=${cell + 1} />
        <${Bars} name=${say("painting.words")} rows=${panels.map(({ title }, n) => [title, maps[n][cell]])} />
        <${NumberTable} caption=${`${say("painting.words")} (${side} × ${side})`} columns=${[say("painting.cell"), ...panels.map(({ title }) => title)]}
          count=${side * side} depends=${[looked.answer]} row=${(n) => [n + 1, ...maps.map((map) => map[n].toFixed(3))]} />
      </section>`}
    </div>`}
  `;
}

/** The cell of the grid under the pointer. */
function cellAt({ currentTarget, clientX, clientY }, side) {
  const { left, top, width, height } = currentTarget.getBoundingClientRect();
  const at = (place, length) => Math.min(side - 1, Math.max(0, Math.floor((place / length) * side)));
  return at(clientY - top, height) * side + at(clientX - left, width);
}
