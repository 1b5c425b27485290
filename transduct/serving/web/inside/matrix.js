// Attention as matrices: one small square a head, and one large one with words at its sides.

import { html, useMemo, useRef, useState } from "../vendor/preact.js";
import { colourOf, named, pictureOf, ready, useDark, useDrawing } from "./colours.js";
import { largest, shown } from "./numbers.js";
import { say } from "./words.js";

const SMALL = 72;
const [LEAST, MOST, WIDE] = [5, 44, 460]; // pixels of a cell, and the most of the large matrix

/** A small square: the matrix of one head, to be made the large one. */
export function Small({ head, weights, rows, columns, pressed, onPress, name }) {
  const dark = useDark();
  const canvas = useRef(null);
  useDrawing(() => {
    const picture = pictureOf(weights, rows, columns, largest(weights), colourOf(head, dark));
    ready(canvas.current, SMALL, SMALL).drawImage(picture, 0, 0, SMALL, SMALL);
  }, [weights, rows, columns, head, dark]);
  return html`
    <button type="button" class="small" aria-pressed=${pressed} onClick=${onPress}>
      <canvas ref=${canvas} aria-hidden="true"></canvas>
      <span style=${{ borderColor: colourOf(head, dark) }}>${name}</span>
    </button>
  `;
}

/**
 * The large matrix. Arrow keys and the pointer go from cell to cell.
 * @param {object} given
 * @param {Float32Array} given.weights
 * @param {string[]} given.rows
 * @param {string[]} given.columns
 * @param {number|"mean"} given.head
 * @param {number} given.row  the word that is chosen
 * @param {(row: number) => void} given.onRow
 * @param {string} given.name  of the head
 */
export function Large({ weights, rows, columns, head, row, onRow, name }) {
  const dark = useDark();
  const canvas = useRef(null);
  const [cell, point] = useState(null);
  const most = useMemo(() => largest(weights), [weights]);
  const picture = useMemo(
    () => pictureOf(weights, rows.length, columns.length, most, colourOf(head, dark)),
    [weights, rows, columns, most, head, dark],
  );
  const plan = useMemo(() => layout(rows, columns), [rows, columns]);
  const now = cell ?? [row, strongest(weights, row, columns.length)];
  useDrawing(() => {
    draw(canvas.current, { weights, rows, columns, picture, plan, now, most, dark });
  }, [weights, picture, plan, now[0], now[1], dark]);
  const weight = weights[now[0] * columns.length + now[1]] ?? 0;
  const said = say("attention.cell", {
    head: name, row: rows[now[0]], column: columns[now[1]], weight: shown(weight, 3),
  });
  const at = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const c = Math.floor((event.clientX - box.left - plan.left) / plan.size);
    const r = Math.floor((event.clientY - box.top - plan.top) / plan.size);
    return r >= 0 && c >= 0 && r < rows.length && c < columns.length ? [r, c] : null;
  };
  const key = (event) => {
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (!by[event.key]) return;
    event.preventDefault();
    const [r, c] = [now[0] + by[event.key][0], now[1] + by[event.key][1]];
    if (r < 0 || c < 0 || r >= rows.length || c >= columns.length) return;
    point([r, c]);
    onRow(r);
  };
  return html`
    <figure class="large">
      <div class="reel">
        <canvas ref=${canvas} tabindex="0" role="img" aria-label=${`${say("attention.matrix")} ${said}`}
          onKeyDown=${key} onPointerMove=${(event) => point(at(event))}
          onPointerLeave=${() => point(null)} onBlur=${() => point(null)}
          onClick=${(event) => at(event) && onRow(at(event)[0])}></canvas>
      </div>
      <figcaption>
        <output>${said}</output>
        <span class="legend" aria-hidden="true">
          0 <i style=${{ background: `linear-gradient(to right, transparent, ${colourOf(head, dark)})` }}></i>
          ${shown(most)}
        </span>
      </figcaption>
    </figure>
  `;
}

function strongest(weights, row, columns) {
  const part = weights.subarray(row * columns, (row + 1) * columns);
  return Math.max(0, part.indexOf(largest(part)));
}

function layout(rows, columns) {
  const widest = (names) => Math.min(110, 14 + 8.2 * Math.max(1, ...names.map(columnsOf)));
  const wide = Math.min(WIDE, innerWidth - widest(rows) - 80);
  const size = Math.max(LEAST, Math.min(MOST, Math.floor(wide / Math.max(rows.length, columns.length))));
  return { size, left: widest(rows), top: widest(columns) * 0.82 + 8 };
}

/** How wide a name is, in Latin letters. */
const columnsOf = (name) => [...name].reduce((sum, each) => sum + (each > "\u1100" ? 1.6 : 1), 0);

function draw(canvas, { weights, rows, columns, picture, plan, now, most, dark }) {
  const { size, left, top } = plan;
  const [width, height] = [columns.length * size, rows.length * size];
  const context = ready(canvas, left + width + top * 0.7, top + height + 2);
  const [text, soft, line, ink] = ["--text", "--soft", "--line", "--ink"].map((n) => named(n, dark));
  context.strokeStyle = line;
  context.strokeRect(left - 0.5, top - 0.5, width + 1, height + 1);
  context.drawImage(picture, left, top, width, height);
  const every = Math.ceil(13 / size); // names that fit
  context.textBaseline = "middle";
  const write = (name, n, chosen, width, x, y, turn, align) => {
    if (n !== chosen && n % every) return;
    context.save();
    context.font = `${n === chosen ? 600 : 400} 13px system-ui, sans-serif`;
    context.fillStyle = n === chosen ? text : soft;
    context.textAlign = align;
    context.translate(x, y);
    context.rotate(turn);
    context.fillText(cut(context, name, width), 0, 0);
    context.restore();
  };
  const middle = (n) => (n + 0.5) * size;
  rows.forEach((name, r) => write(name, r, now[0], left - 10, left - 6, top + middle(r), 0, "right"));
  columns.forEach((name, c) => write(name, c, now[1], top * 1.15, left + middle(c), top - 6, -Math.PI / 3.4, "left"));
  if (size >= 34) {
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    for (let i = 0; i < weights.length; i++) {
      if (weights[i] < 0.005) continue;
      context.fillStyle = weights[i] > 0.62 * most ? named("--card", dark) : text;
      const [r, c] = [Math.floor(i / columns.length), i % columns.length];
      context.fillText(shown(weights[i]).replace(/^0/, ""), left + (c + 0.5) * size, top + (r + 0.5) * size);
    }
  }
  context.strokeStyle = ink;
  context.lineWidth = 1;
  context.strokeRect(left - 0.5, top + now[0] * size - 0.5, width + 1, size + 1);
  context.lineWidth = 2;
  context.strokeRect(left + now[1] * size, top + now[0] * size, size, size);
}

/** A name, shortened to a width. */
function cut(context, name, width) {
  if (context.measureText(name).width <= width) return name;
  let end = name.length;
  while (end > 1 && context.measureText(`${name.slice(0, end)}…`).width > width) end--;
  return `${name.slice(0, end)}…`;
}
