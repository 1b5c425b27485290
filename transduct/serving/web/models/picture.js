// A picture, its label, and where the model looked.

import { html, useMemo, useState } from "../vendor/preact.js";
import { Labels, ranked } from "../parts.js";
import { ask } from "../server.js";
import { say } from "../words.js";
import { address, Progress, useAnswer } from "../work.js";
import { FileChoice, useAddress, useFile } from "./file.js";
import { mean, unpacked } from "../inside/numbers.js";
import { Heat, Legend, rowOf } from "./heat.js";

/** @param {{model: import("./pages.js").Model, given: File[], taken: () => void}} props */
export function Page({ model, given, taken }) {
  const [file, choose] = useFile(given, taken);
  const url = useAddress(file);
  const [shown, show] = useState("0"); // the number of a panel, or the name of a map
  const [head, pick] = useState("mean");
  const values = { model: model.name };
  const found = useAnswer(file && (async (signal) => {
    const { outputs } = await ask(address("v1/predict", { ...values, probabilities: true }), file, { signal });
    return ranked(outputs[0]);
  }), [file, model]);
  const name = /^\d+$/.test(shown) ? undefined : shown;
  const looked = useAnswer(file && ((signal) => ask(address("v1/inspect", { ...values, name }), file, { signal })),
    [file, model, name]);
  const view = useMemo(() => looked.answer && viewOf(looked.answer, shown, head), [looked.answer, shown, head]);
  return html`
    <${FileChoice} kind="picture" file=${file} choose=${choose} />
    <${Progress} ...${found} />
    ${file && html`<div class="beside">
      <figure class="card looked">
        <div class="over"><img src=${url} alt=${file.name} />
          ${view && html`<${Heat} weights=${view.weights} columns=${view.side} name=${say("picture.looked")} />`}</div>
        ${view && html`<${Legend} ...${view} title=${say("picture.looked")} views=${viewsOf(looked.answer)} shown=${shown} show=${show}
          head=${head} pick=${pick} />`}
      </figure>
      ${found.answer && html`<${Labels} rows=${found.answer} />`}
    </div>`}
  `;
}

/** The model's summaries, and its layers. */
const viewsOf = ({ panels, names }) => [...panels.map(({ title }, n) => [`${n}`, title]), ...names.map((name) => [name, name])];

/** The weights of a panel, or those of the class token in a map: without one, of all patches. */
function viewOf({ panels, map }, shown, head) {
  const side = panels[0].shape[1];
  if (!map) return { weights: unpacked(panels[Number(shown) || 0]), side, heads: 0 };
  const values = unpacked(map);
  const [heads, rows] = map.shape;
  const asked = rows > side * side ? [0] : Array.from({ length: rows }, (_, row) => row);
  const chosen = head === "mean" ? Array.from({ length: heads }, (_, n) => n) : [Number(head)];
  const all = chosen.flatMap((n) => asked.map((row) => rowOf(map, values, n, row)));
  return { weights: mean(all).slice(-side * side), side, heads };
}
