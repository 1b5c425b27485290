// The view of positions: the model's own scheme as a heat map, and what attention sees of distance.

import { html, useMemo, useRef } from "../vendor/preact.js";
import { NumberTable } from "../table.js";
import { colourOf, named, picture, ready, useDark, useDrawing } from "./colours.js";
import { useData } from "./data.js";
import { shown, unpacked } from "./numbers.js";
import { say } from "./words.js";

const [WIDTH, HEIGHT, LEFT, BELOW] = [520, 240, 46, 30];

/** The view; see `views.js` for what all views are given. */
export function Positions({ get }) {
  const [found, trouble] = useData(get, "positions");
  if (!found) return html`<p role=${trouble ? "alert" : "status"}>${trouble ?? say("waiting")}</p>`;
  const { distances, lines } = found;
  if (found.scheme === "none") return html`<p>${say("positions.none")}</p>`;
  return html`
    <p class="hint"><strong>${say(`positions.${found.scheme}.name`)}</strong> ${say(`positions.${found.scheme}`)}</p>
    <div class="two">
      <${Heat} found=${found} />
      <${Curves} found=${found} />
    </div>
    <${NumberTable} caption=${say("positions.product")} count=${distances.length} depends=${[found]}
      columns=${[say("positions.distance"), ...lines.map((_, head) => (
        lines.length > 1 ? say("head", { head: head + 1 }) : say("positions.value")))]}
      row=${(i) => [distances[i], ...lines.map((each) => shown(each[i], 3))]} />
  `;
}

function Heat({ found }) {
  const dark = useDark();
  const canvas = useRef(null);
  const [rows, columns] = found.vectors.shape;
  const values = useMemo(() => unpacked(found.vectors), [found]);
  useDrawing(() => {
    const { d3 } = globalThis;
    const scale = d3.scaleDiverging([-found.vectors.scale, 0, found.vectors.scale], d3.interpolatePuOr);
    const ink = (value) => {
      const { r, g, b } = d3.rgb(scale(value));
      return [r, g, b, 255];
    };
    ready(canvas.current, WIDTH, HEIGHT).drawImage(picture(values, rows, columns, ink), 0, 0, WIDTH, HEIGHT);
  }, [values, dark]);
  const what = say(`positions.rows.${found.rows}`);
  return html`
    <figure>
      <figcaption>${what}</figcaption>
      <canvas ref=${canvas} role="img" aria-label=${`${what} (${rows} × ${columns})`}></canvas>
      <p class="legend" aria-hidden="true">
        ${shown(-found.vectors.scale)} <i class="diverging"></i> ${shown(found.vectors.scale)}
      </p>
    </figure>
  `;
}

function Curves({ found: { distances, lines, scheme } }) {
  const dark = useDark();
  const { d3 } = globalThis;
  const all = lines.flat();
  const x = d3.scaleLinear([distances[0], distances.at(-1)], [LEFT, WIDTH - 8]);
  const y = d3.scaleLinear([Math.min(0, ...all), Math.max(0, ...all)], [HEIGHT - BELOW, 8]).nice();
  const line = d3.line((_, i) => x(distances[i]), (value) => y(value));
  const bias = scheme === "alibi" || scheme === "bucketed";
  const title = say(bias ? "positions.bias" : "positions.product");
  return html`
    <figure>
      <figcaption>${title}</figcaption>
      <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} class="curves" role="img" aria-label=${title}>
        ${y.ticks(5).map((value) => html`
          <g key=${value}><line class="grid" x1=${LEFT} x2=${WIDTH - 8} y1=${y(value)} y2=${y(value)} />
          <text x=${LEFT - 6} y=${y(value) + 4} class="end">${shown(value, Math.abs(value) < 10 && value % 1 ? 1 : 0)}</text></g>`)}
        ${x.ticks(7).map((value) => html`<text x=${x(value)} y=${HEIGHT - BELOW + 18} class="middle">${shown(value, 0)}</text>`)}
        ${lines.map((each, head) => html`
          <path key=${head} d=${line(each)} fill="none" stroke-width="2"
            stroke=${lines.length > 1 ? colourOf(head, dark) : named("--ink", dark)} />`)}
        ${lines.length > 1 && lines.map((each, head) => html`
          <text key=${head} x=${WIDTH - 12} y=${y(each.at(-1)) - 4} class="end">${head + 1}</text>`)}
      </svg>
      <p class="legend">${say("positions.distance")}</p>
    </figure>
  `;
}
