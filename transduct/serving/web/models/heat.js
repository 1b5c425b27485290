// Weights over a picture, and the same numbers as a table.

import { html, useLayoutEffect, useRef } from "../vendor/preact.js";
import { say } from "../words.js";

/** A row of a map (heads, rows, columns). */
export function rowOf({ shape: [, rows, columns] }, values, head, row) {
  const start = (head * rows + row) * columns;
  return values.slice(start, start + columns);
}

/**
 * Weights as a veil: where most was looked, the picture shows through.
 * @param {{weights: ArrayLike<number>, columns: number, name: string}} given
 */
export function Heat({ weights, columns, name }) {
  const canvas = useRef(null);
  const rows = weights.length / columns;
  useLayoutEffect(() => {
    const context = canvas.current.getContext("2d");
    const image = context.createImageData(columns, rows);
    const most = Math.max(...weights, 1e-9);
    weights.forEach((weight, place) => {
      image.data.set([8, 14, 28, 215 * (1 - weight / most)], 4 * place);
    });
    context.putImageData(image, 0, 0);
  }, [weights, columns]);
  return html`<canvas ref=${canvas} class="heat" width=${columns} height=${rows} role="img" aria-label=${name}></canvas>`;
}

/**
 * Menus of what is shown over a picture: a view, and a head of it.
 * @param {{views: [string, string][], shown: string, show: (view: string) => void, heads: number,
 *   head: string, pick: (head: string) => void}} given
 */
export function Menus({ views, shown, show, heads, head, pick }) {
  return html`<div class="row">
    <label class="inline">${say("picture.view")} <select value=${shown} onChange=${(event) => show(event.target.value)}>
      ${views.map(([value, name]) => html`<option value=${value}>${name}</option>`)}
    </select></label>
    ${heads > 0 && html`<label class="inline">${say("picture.head")} <select value=${head}
      onChange=${(event) => pick(event.target.value)}>
      <option value="mean">${say("picture.mean")}</option>
      ${Array.from({ length: heads }, (_, n) => html`<option value=${n}>${n + 1}</option>`)}
    </select></label>`}
  </div>`;
}

/** The numbers of a view, folded. @param {{rows: (string|number)[][], head: string[]}} given */
export function Numbers({ head, rows }) {
  return html`<details class="numbers">
    <summary>${say("model.numbers")}</summary>
    <div class="scrolls" tabindex="0" role="region" aria-label=${say("model.numbers")}><table>
      <thead><tr>${head.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
      <tbody>${rows.map(([name, ...values]) => html`<tr><th scope="row">${name}</th>
        ${values.map((value) => html`<td>${typeof value === "number" ? value.toFixed(3) : value}</td>`)}</tr>`)}</tbody>
    </table></div>
  </details>`;
}

/** A grid of numbers as rows of a table. */
export const gridRows = (weights, columns) =>
  Array.from({ length: weights.length / columns }, (_, row) => [
    `${row + 1}`, ...weights.slice(row * columns, (row + 1) * columns),
  ]);
