// Attention as lines: from each word (left) to the words where it looked (right).

import { html, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { led } from "../parts.js";
import { colourOf, named, ready, useDark, useDrawing } from "./colours.js";
import { shown } from "./numbers.js";
import { say } from "./words.js";

const WIDTH = 220;
const MOST = 2500; // lines that are drawn for all words together: the heaviest
const AT_ONCE = 80; // of them in one task: without a GPU a line takes a tenth of a millisecond
const SQUARE = 9;

/**
 * @param {object} given
 * @param {string[]} given.rows  names of the words that look
 * @param {string[]} given.columns  names of the words that are looked at
 * @param {{head: number|"mean", weights: Float32Array}[]} given.heads  those that are lit
 * @param {number} given.row  the word that is chosen
 * @param {(row: number) => void} given.onRow
 */
export function Lines({ rows, columns, heads, row, onRow, label }) {
  const dark = useDark();
  const [over, point] = useState(null);
  const [height, measure] = useState(32);
  const canvas = useRef(null);
  const list = useRef(null);
  const now = over ?? row;
  useLayoutEffect(() => {
    const found = list.current.firstElementChild?.getBoundingClientRect().height;
    if (found) measure(found);
  }, [rows]);
  useDrawing(() => draw(canvas.current, { rows, columns, heads, now, height, dark }), [rows, columns, heads, now, height, dark]);
  useLayoutEffect(() => { // in a long list, what is chosen comes in sight
    const all = list.current.parentNode;
    const top = (row + 0.5) * height;
    if (top < all.scrollTop || top > all.scrollTop + all.clientHeight) all.scrollTop = top - all.clientHeight / 2;
  }, [row, height]);
  const key = (event) => {
    const to = led(event, row, rows.length);
    if (to === undefined) return;
    onRow(to);
    list.current.children[to].focus();
  };
  const heaviest = columns.map((_, c) => heads.reduce(
    (best, { head, weights }) => {
      const weight = weights[now * columns.length + c];
      return weight > best.weight ? { head, weight } : best;
    }, { head: null, weight: 0 }));
  const name = (head) => (head === "mean" ? say("mean") : say("head", { head: head + 1 }));
  return html`
    <div class="lines">
      <ul class="words rows" role="listbox" aria-label=${label} ref=${list} onKeyDown=${key}
        onPointerLeave=${() => point(null)}>
        ${rows.map((text, r) => html`
          <li role="option" key=${r} aria-selected=${r === row} tabindex=${r === row ? 0 : -1}
            class=${r === now ? "here" : ""} onClick=${() => onRow(r)} dir="auto"
            onPointerEnter=${() => point(r)}>${text}</li>`)}
      </ul>
      <canvas ref=${canvas} aria-hidden="true"></canvas>
      <ul class="words" aria-label=${say("attention.seen")}>
        ${columns.map((text, c) => html`
          <li key=${c} class=${heaviest[c].weight >= 0.2 ? "here" : ""}>
            <span dir="auto">${text}</span>
            <small title=${heaviest[c].head === null ? "" : name(heaviest[c].head)}>
              ${heaviest[c].weight >= 0.005 ? shown(heaviest[c].weight) : ""}</small>
          </li>`)}
      </ul>
    </div>
  `;
}

function* draw(canvas, { rows, columns, heads, now, height, dark }) {
  const squares = Math.min(heads.length, 16) * SQUARE;
  const end = WIDTH - squares - 4;
  const context = ready(canvas, WIDTH, height * Math.max(rows.length, columns.length, 1));
  const limit = heaviest(heads, MOST);
  const middle = (i) => (i + 0.5) * height;
  const line = (head, nth, r, c, weight, strong) => {
    const shift = (nth - (heads.length - 1) / 2) * Math.min(2.2, 14 / heads.length);
    const [from, to] = [middle(r) + shift, middle(c) + shift];
    context.strokeStyle = colourOf(head, dark);
    context.globalAlpha = strong ? Math.min(1, 0.15 + weight) : 0.32 * weight;
    context.lineWidth = strong ? 1 + 5 * weight : 1.2;
    context.beginPath();
    context.moveTo(2, from);
    context.bezierCurveTo(end * 0.45, from, end * 0.55, to, end, to);
    context.stroke();
  };
  let count = 0;
  for (const [nth, { head, weights }] of heads.entries()) {
    for (let c = 0; c < columns.length; c++) {
      const weight = weights[now * columns.length + c];
      if (weight > 0.01) line(head, nth, now, c, weight, true);
      context.fillStyle = colourOf(head, dark);
      context.globalAlpha = Math.min(1, weight);
      context.fillRect(end + 4 + nth * SQUARE, middle(c) - 9, SQUARE - 1, 18);
      if ((count += 1) % AT_ONCE === 0) yield;
    }
  }
  context.globalAlpha = 0.5;
  context.strokeStyle = named("--line", dark);
  context.lineWidth = 1;
  for (let c = 0; c < columns.length; c++) {
    context.strokeRect(end + 3.5, middle(c) - 9.5, squares, 19);
  }
  context.globalCompositeOperation = "destination-over"; // all others lie behind
  for (const [nth, { head, weights }] of heads.entries()) {
    for (let i = 0; i < weights.length; i++) {
      const r = Math.floor(i / columns.length);
      if (r === now || weights[i] < limit) continue;
      line(head, nth, r, i % columns.length, weights[i]);
      if ((count += 1) % AT_ONCE === 0) yield;
    }
  }
}

/** The weight from which on lines are drawn. */
function heaviest(heads, most) {
  const counts = new Uint32Array(101);
  let total = 0;
  for (const { weights } of heads) {
    for (const weight of weights) counts[Math.min(100, Math.floor(weight * 100))]++;
  }
  for (let percent = 100; percent > 3; percent--) {
    total += counts[percent];
    if (total > most) return (percent + 1) / 100;
  }
  return 0.04;
}

