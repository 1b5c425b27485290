// The view of the next word: what the model would have written at each step, and how likely.

import { html, useMemo, useState } from "../vendor/preact.js";
import { useData } from "./data.js";
import { chances, shown } from "./numbers.js";
import { NumberTable } from "./table.js";
import { useLabel, useSay } from "./tongue.js";

/** The view; see `views.js` for what all views are given. */
export function Next({ sentence, get, step, onStep, goOn }) {
  const say = useSay();
  const label = useLabel();
  const [found, trouble] = useData(get, "next");
  const [at, heat] = useState(9); // the number of temperature 1
  if (!found) return html`<p role=${trouble ? "alert" : "status"}>${trouble ?? say("waiting")}</p>`;
  const temperature = found.temperatures[at];
  const now = found.steps[Math.min(step, found.steps.length - 1)];
  return html`
    <p class="hint">${say("next.how")}</p>
    <${Course} sentence=${sentence} steps=${found.steps} at=${at} temperature=${temperature}
      step=${step} onStep=${onStep} />
    <div class="controls">
      <label class="slider">
        <span>${say("next.temperature")}</span>
        <input type="range" min="0" max=${found.temperatures.length - 1} value=${at}
          aria-valuetext=${temperature.toFixed(1)} onInput=${(event) => heat(Number(event.target.value))} />
        <output>${temperature.toFixed(1)}</output>
      </label>
      <span class="hint">${say(temperature === 1 ? "next.own" : temperature < 1 ? "next.colder" : "next.hotter")}</span>
    </div>
    <${Bars} now=${now} at=${at} temperature=${temperature} label=${label}
      onChoose=${goOn && ((id) => goOn([...sentence.tokens.slice(0, step - sentence.given), id]))} />
    ${!goOn && html`<p class="hint">${say("next.file")}</p>`}
    <${Numbers} steps=${found.steps} written=${sentence.sides.written.pieces} at=${at} temperature=${temperature} label=${label} />
  `;
}

/** All steps: each piece that was written, and how likely it was. */
function Course({ sentence, steps, at, temperature, step, onStep }) {
  const say = useSay();
  const label = useLabel();
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

function Bars({ now, at, temperature, label, onChoose }) {
  const say = useSay();
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

function Numbers({ steps, written, at, temperature, label }) {
  const say = useSay();
  const columns = useMemo(
    () => [say("next.step"), ...[...steps[0].ids.keys()].map((n) => `${n + 1}.`), say("next.rest")],
    [steps, say],
  );
  const row = useMemo(() => (r) => {
    const step = steps[written[r].first];
    const { each, others } = chances(step, at, temperature);
    const cells = step.labels.map((one, n) => `${label(one)} ${percent(each[n])}`);
    return [label(written[r]), ...cells, percent(others)];
  }, [steps, written, at, temperature, label]);
  const caption = say("next.table", { temperature: temperature.toFixed(1) });
  return html`<${NumberTable} caption=${caption} columns=${columns} count=${written.length} row=${row} />`;
}

/** How likely what was written is at a temperature; 0 if it is none of the likeliest. */
function likelihood(step, at, temperature) {
  const place = step.ids.indexOf(step.chosen.id);
  return place < 0 ? Math.exp(step.chosen.log) : chances(step, at, temperature).each[place];
}

const percent = (share) => (share < 0.0005 && share > 0 ? "<0.1 %" : `${shown(100 * share, share < 0.0995 ? 1 : 0)} %`);
