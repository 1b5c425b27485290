// Weights over a picture, and the same numbers as a table.

import { html, useLayoutEffect, useRef } from "../vendor/preact.js";
import { NumberTable } from "../table.js";
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
 * Below a picture: what is shown over it, menus of views and their heads, and the same numbers as a table.
 * @param {{title: string, weights: ArrayLike<number>, side: number, views: [string, string][], shown: string,
 *   show: (view: string) => void, heads: number, head: string, pick: (head: string) => void}} given
 */
export function Legend({ title, weights, side, views, shown, show, heads, head, pick }) {
  const menu = (name, value, choose, options) => html`<label class="inline">${name}
    <select value=${value} onChange=${(event) => choose(event.target.value)}>
      ${options.map(([each, text]) => html`<option value=${each}>${text}</option>`)}
    </select></label>`;
  const each = Array.from({ length: heads }, (_, n) => [n, n + 1]);
  return html`<figcaption>${title}</figcaption>
    <div class="row">
      ${menu(say("picture.view"), shown, show, views)}
      ${heads > 0 && menu(say("picture.head"), head, pick, [["mean", say("picture.mean")], ...each])}
    </div>
    <${NumberTable} caption=${title} columns=${[say("table.row"), ...Array.from({ length: side }, (_, n) => n + 1)]}
      count=${weights.length / side} depends=${[weights]}
      row=${(n) => [n + 1, ...Array.from(weights.slice(n * side, (n + 1) * side), (weight) => weight.toFixed(3))]} />`;
}
