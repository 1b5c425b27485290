// The view of the model: its parts from the input (below) to the output (above).

import { html } from "../vendor/preact.js";
import { state } from "../store.js";
import { NumberTable } from "../table.js";
import { useData } from "./data.js";
import { say } from "./words.js";

/** The view; see `views.js` for what all views are given. */
export function Model({ get, openLayer }) {
  const [found, trouble] = useData(get, "model");
  if (!found) return html`<p role=${trouble ? "alert" : "status"}>${trouble ?? say("waiting")}</p>`;
  const digits = (count) => count.toLocaleString(state().tongue);
  const total = found.parts.reduce((sum, { parameters }) => sum + parameters, 0);
  const row = ({ name, shape, layers, parameters }) => [name, shape.replaceAll("x", "×"), layers, digits(parameters)];
  const both = found.columns.length > 1;
  return html`
    <p class="hint">${say("model.how", { count: digits(total) })}</p>
    <div class="plan">
      ${found.columns.map((column, side) => html`
        <ol class="stack" key=${side} aria-label=${say(!both ? "model.stack" : side ? "model.decoder" : "model.encoder")}>
          ${column.map((box) => html`<${Box} box=${box} openLayer=${openLayer} />`)}
        </ol>
        ${both && !side && html`<span class="across" aria-hidden="true">${say("model.across")} →</span>`}`)}
    </div>
    <dl class="settings">
      ${Object.entries(found.about).map(([name, value]) => html`
        <div key=${name}><dt>${name}</dt><dd>${Array.isArray(value) ? value.join(", ") : String(value)}</dd></div>`)}
    </dl>
    <${NumberTable} caption=${say("model.table")} count=${found.parts.length} depends=${[found]} row=${(n) => row(found.parts[n])}
      columns=${["part", "shape", "layers", "parameters"].map((name) => say(`model.${name}`))} />
  `;
}

function Box({ box: [title, lines], openLayer }) {
  const layer = /^(encoder|decoder) (\d+)$/.exec(title);
  const part = (line) => {
    const [name, ...rest] = line.split("  ");
    const look = layer && /^(self|cross)_attention$/.exec(name);
    const kind = look && (look[1] === "cross" ? "cross" : layer[1]);
    const text = html`${name.replaceAll("_", " ")} <small>${rest.join("  ").replaceAll("x", "×")}</small>`;
    return html`<li>${kind
      ? html`<button type="button" title=${say("model.open")} onClick=${() => openLayer(kind, Number(layer[2]) - 1)}>${text}</button>`
      : text}</li>`;
  };
  return html`
    <li class=${lines.length ? "block" : "block plain"}>
      <strong>${title.replaceAll("_", " ")}</strong>
      ${lines.length > 0 && html`<ul>${lines.map(part)}</ul>`}
    </li>
  `;
}
