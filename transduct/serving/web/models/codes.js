// A picture, and what a model rebuilds of it from its codes.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Save } from "../parts.js";
import { ask, send } from "../server.js";
import { NumberTable } from "../table.js";
import { say } from "../words.js";
import { address, Progress, useAnswer } from "../work.js";
import { FileChoice, useAddress, useFile } from "./file.js";

/** @param {{model: import("./pages.js").Model, given: File[], taken: () => void}} props */
export function Page({ model, given, taken }) {
  const [file, choose] = useFile(given, taken);
  const question = async (signal) => (await send(address("v1/predict", { model: model.name }), file, { signal })).blob();
  const found = useAnswer(file && question, [file, model]);
  const asked = { model: model.name, codes: true };
  const codes = useAnswer(file && ((signal) => ask(address("v1/predict", asked), file, { signal })), [file, model]);
  const grid = codes.answer?.outputs[0];
  const both = useAddress(found.answer);
  const [halves, split] = useState([]);
  useEffect(() => {
    if (found.answer) void halvesOf(found.answer).then(split);
  }, [found.answer]);
  const [original, rebuilt] = [useAddress(halves[0]), useAddress(halves[1])];
  return html`
    <${FileChoice} kind="picture" file=${file} choose=${choose} />
    <${Progress} ...${found} />
    ${halves.length > 0 && html`<div class="beside">
      ${[[original, say("codes.original")], [rebuilt, say("codes.rebuilt")]].map(([url, name]) => html`
        <figure class="card looked"><div class="over"><img class="pixels" src=${url} alt=${name} /></div>
          <figcaption>${name}</figcaption></figure>`)}
      ${grid && html`<figure class="card looked"><div class="over"><${Grid} grid=${grid} /></div>
        <figcaption>${say("codes.grid", { count: new Set(grid.flat()).size })}</figcaption>
        <${NumberTable} caption=${say("codes.cells")} columns=${[say("table.row"), ...grid[0].map((_, n) => n + 1)]} count=${grid.length}
          depends=${[grid]} row=${(n) => [n + 1, ...grid[n]]} />
      </figure>`}
    </div>
    <div class="row"><${Save} href=${both} name="rebuilt.png" /></div>`}
  `;
}

/** The codes as cells: the same code has the same colour. @param {{grid: number[][]}} given */
function Grid({ grid }) {
  const size = 24;
  const colour = (code) => `oklch(0.8 0.1 ${(code * 137.5) % 360})`;
  return html`<svg class="codes" viewBox=${`0 0 ${size * grid[0].length} ${size * grid.length}`} role="img" aria-label=${say("codes.cells")}>
    ${grid.flatMap((row, y) => row.map((code, x) => html`<g transform=${`translate(${size * x} ${size * y})`}>
      <rect width=${size} height=${size} fill=${colour(code)} /><text x=${size / 2} y=${size / 2 + 3}>${code}</text></g>`))}
  </svg>`;
}

/** The picture as it was read, and below it the rebuilt one, as two pictures. */
async function halvesOf(blob) {
  const whole = await createImageBitmap(blob);
  const { width } = whole;
  const height = whole.height / 2;
  return Promise.all([0, 1].map((half) => {
    const canvas = Object.assign(document.createElement("canvas"), { width, height });
    canvas.getContext("2d").drawImage(whole, 0, -half * height);
    return new Promise((resolve) => canvas.toBlob(resolve));
  }));
}
