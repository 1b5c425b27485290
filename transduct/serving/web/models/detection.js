// The objects in a picture, and where the model looked for each.

import { html, useState } from "../vendor/preact.js";
import { ask } from "../server.js";
import { say } from "../words.js";
import { FileChoice, useAddress, useFile } from "./file.js";
import { gridRows, Heat, Numbers, unpacked } from "./heat.js";
import { address, Progress, useAnswer } from "./work.js";

/** @param {{model: import("./pages.js").Model, given: File[], taken: () => void}} props */
export function Page({ model, given, taken }) {
  const [file, choose] = useFile(given, taken);
  const url = useAddress(file);
  const [threshold, set] = useState(0.5);
  const [chosen, pick] = useState(-1);
  const [size, measure] = useState(null);
  const values = { model: model.name, threshold };
  const found = useAnswer(file && ((signal) => ask(address("v1/predict", values), file, { signal })), [file, model, threshold]);
  const objects = found.answer?.outputs[0] ?? [];
  const object = objects[chosen];
  const looked = useAnswer(object && ((signal) => ask(address("v1/inspect", values), file, { signal })), [object]);
  const panel = looked.answer && panelOf(looked.answer.panels, chosen, objects.length);
  const weights = panel && unpacked(panel);
  return html`
    <${FileChoice} kind="picture" file=${file} choose=${choose}>
      <label class="inline">${say("detection.threshold")} <input type="range" min="0.05" max="0.95" step="0.05"
        value=${threshold} onInput=${(event) => {
          pick(-1);
          set(Number(event.target.value));
        }} /><output class="number">${threshold.toFixed(2)}</output></label>
    <//>
    <${Progress} ...${found} />
    ${file && html`<div class="beside">
      <figure class="card looked"><div class="over">
        <img src=${url} alt=${file.name} onLoad=${({ target }) => measure([target.naturalWidth, target.naturalHeight])} />
        ${object && weights && html`<${Heat} weights=${weights} columns=${panel.shape[1]} name=${say("picture.looked")} />`}
        ${size && objects.map((each, n) => html`<span class=${`box${n === chosen ? " chosen" : ""}`} style=${placed(each.box, size)}
          aria-hidden="true" onClick=${() => pick(n === chosen ? -1 : n)}><b>${each.label}</b></span>`)}
      </div>${object && weights && html`<figcaption>${say("picture.looked")}: ${panel.title}</figcaption>
        <${Numbers} head=${["", ...Array.from({ length: panel.shape[1] }, (_, n) => n + 1)]} rows=${gridRows(weights, panel.shape[1])} />`}
      </figure>
      ${found.answer && html`<section class="card" aria-label=${say("detection.title")} aria-live="polite">
        ${objects.length === 0 && html`<p>${say("detection.nothing")}</p>`}
        <ul class="found">${objects.map(({ label, score, box }, n) => html`<li>
          <button type="button" class="quiet wide" aria-pressed=${n === chosen} onClick=${() => pick(n === chosen ? -1 : n)}>
            ${label} <span class="number">${score.toFixed(2)}</span>
            <span class="number">${box.map(Math.round).join(", ")}</span></button></li>`)}</ul>
        <p class="note">${say("detection.hint")}</p>
      </section>`}
    </div>`}
  `;
}

/** The panel of an object in the last layer. */
function panelOf(panels, chosen, count) {
  const layers = Math.max(1, Math.round(panels.length / count));
  return panels[chosen * layers + layers - 1];
}

function placed([left, top, right, bottom], [width, height]) {
  const part = (length, whole) => `${(100 * length) / whole}%`;
  return { left: part(left, width), top: part(top, height), width: part(right - left, width), height: part(bottom - top, height) };
}
