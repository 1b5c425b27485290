// The objects in a picture, and where the model looked for each.

import { html, useState } from "../vendor/preact.js";
import { Slider } from "../parts.js";
import { ask } from "../server.js";
import { say } from "../words.js";
import { address, Progress, useAnswer } from "../work.js";
import { FileChoice, useAddress, useFile } from "./file.js";
import { unpacked } from "../inside/numbers.js";
import { Heat, Legend, rowOf } from "./heat.js";

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
  const [layer, show] = useState("");
  const [head, pickHead] = useState("mean");
  const name = head === "mean" ? undefined : layer;
  const looked = useAnswer(object && ((signal) => ask(address("v1/inspect", { ...values, name }), file, { signal })), [object, name]);
  const view = looked.answer && viewOf(looked.answer, chosen, layer, head);
  return html`
    <${FileChoice} kind="picture" file=${file} choose=${choose}>
      <${Slider} name=${say("detection.threshold")} min="0.05" max="0.95" step="0.05" value=${threshold}
        shown=${threshold.toFixed(2)} choose=${(to) => {
          pick(-1);
          set(to);
        }} />
    <//>
    <${Progress} ...${found} />
    ${file && html`<div class="beside">
      <figure class="card looked"><div class="over">
        <img src=${url} alt=${file.name} onLoad=${({ target }) => measure([target.naturalWidth, target.naturalHeight])} />
        ${object && view && html`<${Heat} weights=${view.weights} columns=${view.side} name=${say("picture.looked")} />`}
        ${size && objects.map((each, n) => html`<span class=${`box${n === chosen ? " chosen" : ""}`} style=${placed(each.box, size)}
          aria-hidden="true" onClick=${() => pick(n === chosen ? -1 : n)}><b>${each.label}</b></span>`)}
      </div>${object && view && html`<${Legend} ...${view} title=${`${say("picture.looked")}: ${view.title}`}
        views=${view.names.map((each) => [each, each])} shown=${view.name} show=${show} head=${head} pick=${(to) => {
          show(view.name);
          pickHead(to);
        }} />`}
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

/** Where one head, or all, of a layer looked for an object: the last layer if none is chosen. */
function viewOf({ names: all, heads, panels, map }, chosen, layer, head) {
  const names = all.filter((name) => name.endsWith("cross"));
  const name = names.includes(layer) ? layer : names.at(-1);
  const panel = panels[chosen * names.length + names.indexOf(name)];
  const weights = head === "mean" || map?.name !== name ? unpacked(panel) : rowOf(map, unpacked(map), Number(head), panel.query);
  return { names, name, heads: heads[name], title: panel.title, side: panel.shape[1], weights };
}

function placed([left, top, right, bottom], [width, height]) {
  const part = (length, whole) => `${(100 * length) / whole}%`;
  return { left: part(left, width), top: part(top, height), width: part(right - left, width), height: part(bottom - top, height) };
}
