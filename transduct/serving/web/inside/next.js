// The view of the next word: what the model would have written at each step, and how likely.

import { html, useState } from "../vendor/preact.js";
import { percent, Slider } from "../parts.js";
import { NumberTable } from "../table.js";
import { useData } from "./data.js";
import { chances } from "./numbers.js";
import { label, say } from "./words.js";

/** The view; see `views.js` for what all views are given. */
export function Next({ sentence, get, step, onStep, goOn }) {
  const [found, trouble] = useData(get, "next");
  const [at, heat] = useState(9); // the number of temperature 1
  if (!found) return html`<p role=${trouble ? "alert" : "status"}>${trouble ?? say("waiting")}</p>`;
  const temperature = found.temperatures[at];
  const written = sentence.sides.written.pieces;
  const now = found.steps[Math.min(step, found.steps.length - 1)];
  return html`
    <p class="hint">${say("next.how")}</p>
    <${Course} sentence=${sentence} steps=${found.steps} at=${at} temperature=${temperature}
      step=${step} onStep=${onStep} />
    <div class="controls">
      <${Slider} name=${say("next.temperature")} max=${found.temperatures.length - 1} value=${at} choose=${heat}
        shown=${temperature.toFixed(1)} />
      <span class="hint">${say(temperature === 1 ? "next.own" : temperature < 1 ? "next.colder" : "next.hotter")}</span>
    </div>
    <${Bars} now=${now} at=${at} temperature=${temperature}
      onChoose=${goOn && ((id) => goOn([...sentence.tokens.slice(0, step - sentence.given), id]))} />
    ${!goOn && html`<p class="hint">${say("next.file")}</p>`}
    <${NumberTable} caption=${say("next.table", { temperature: temperature.toFixed(1) })} count=${written.length}
      columns=${[say("next.step"), ...now.ids.map((_, n) => `${n + 1}.`), say("next.rest")]} depends=${[found, written]}
      row=${(r) => rowOf(written[r], found.steps[written[r].first], at, temperature)} />
  `;
}

/** All steps: each piece that was written, and how likely it was. */
function Course({ sentence, steps, at, temperature, step, onStep }) {
  return html`
    <ol class="course" aria-label=${say("next.course")}>
      ${sentence.sides.written.pieces.map((piece) => {
        const likely = likelihood(steps[piece.first], at, temperature);
        const here = piece.first <= step && step <= piece.last;
        return html`
          <li key=${piece.first}>
            <button type="button" aria-current=${here ? "step" : null} onClick=${() => onStep(piece.first)}>
              <span dir="auto">${label(piece)}</span>
              <meter min="0" max="1" value=${likely} aria-label=${say("next.likely")}></meter>
              <small>${percent(likely)}</small>
            </button>
          </li>`;
      })}
    </ol>
  `;
}

function Bars({ now, at, temperature, onChoose }) {
  const { each, others } = chances(now, at, temperature);
  const scale = globalThis.d3.scaleLinear([0, Math.max(...each, others, 0.05)], [0, 100]);
  const bar = (share, kind) => html`<i class=${`share ${kind}`} style=${{ width: `${scale(share)}%` }}></i>`;
  return html`
    <ol class="chances" aria-label=${say("next.bars")}>
      ${now.ids.map((id, place) => {
        const chosen = id === now.chosen.id;
        const name = label(now.labels[place]);
        return html`
          <li key=${id} class=${chosen ? "chosen" : ""}>
            <button type="button" disabled=${!onChoose || chosen || now.labels[place].special} dir="auto"
              title=${onChoose && !chosen ? say("next.go", { token: name }) : ""}
              onClick=${() => onChoose(id)}>${name}</button>
            <span class="track">${bar(each[place], chosen ? "ink" : "")}</span>
            <output>${percent(each[place])}</output>
            <small>${chosen ? say("next.written") : ""}</small>
          </li>`;
      })}
      <li class="rest">
        <span>${say("next.rest")}</span>
        <span class="track">${bar(others, "striped")}</span>
        <output>${percent(others)}</output>
        <small></small>
      </li>
    </ol>
    ${now.chosen.place >= now.ids.length && html`
      <p class="hint">${say("next.far", { place: now.chosen.place + 1, share: percent(Math.exp(now.chosen.log)) })}</p>`}
  `;
}

function rowOf(piece, step, at, temperature) {
  const { each, others } = chances(step, at, temperature);
  return [label(piece), ...step.labels.map((one, n) => `${label(one)} ${percent(each[n])}`), percent(others)];
}

/** How likely what was written is at a temperature; 0 if it is none of the likeliest. */
function likelihood(step, at, temperature) {
  const place = step.ids.indexOf(step.chosen.id);
  return place < 0 ? Math.exp(step.chosen.log) : chances(step, at, temperature).each[place];
}
