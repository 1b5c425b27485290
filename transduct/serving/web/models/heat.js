// Weights over a picture, and the same numbers as a table.

import { html, useLayoutEffect, useRef } from "../vendor/preact.js";
import { say } from "../words.js";

/**
 * Numbers that travel as 16-bit integers in base64.
 * @param {{data: string, scale: number}} packed
 */
export function unpacked({ data, scale }) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  return Float32Array.from(new Int16Array(bytes.buffer), (whole) => (whole * scale) / 32767);
}

/** A row of a map (heads, rows, columns). */
export function rowOf({ shape: [, rows, columns] }, values, head, row) {
  const start = (head * rows + row) * columns;
  return values.slice(start, start + columns);
}

/** The mean of some lists of numbers of one length. */
export const mean = (lists) =>
  lists[0].map((_, place) => lists.reduce((sum, one) => sum + one[place], 0) / lists.length);

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
