// A text and the label that a model gives it.

import { html, useState } from "../vendor/preact.js";
import { InsidePanel } from "../panel.js";
import { Bars, useSettled } from "../parts.js";
import { ask } from "../server.js";
import { say } from "../words.js";
import { Progress, useAnswer } from "./work.js";

const STILL = 300; // milliseconds without a key before the model is asked
const SHOWN = 8; // labels

/** @param {{model: import("./pages.js").Model}} props */
export function Page({ model }) {
  const [text, write] = useState("");
  const [open, toggle] = useState(false);
  const settled = useSettled(text, STILL);
  const found = useAnswer(settled.trim() ? (signal) => labels(model, settled, signal) : null, [settled, model]);
  const rows = found.answer?.probabilities;
  return html`
    <label class="field"><span>${say("model.text")}</span>
      <textarea class="card" dir="auto" lang="" value=${text} onInput=${(event) => write(event.target.value)}></textarea>
    </label>
    <${Progress} ...${found} />
    ${rows && html`<section class="card" aria-label=${say("label.title")} aria-live="polite">
      <p class="answer" lang="" dir="auto">${rows[0][0]}</p>
      <${Bars} name=${say("label.title")} rows=${rows.slice(0, SHOWN)} />
    </section>`}
    ${found.answer?.text && html`<p class="card answer" lang="" dir="auto" aria-live="polite">${found.answer.text}</p>`}
    ${found.answer && html`<div class="row"><button type="button" class="chip" aria-expanded=${open}
      onClick=${() => toggle(!open)}>${say("inside.title")}</button></div>`}
    ${found.answer && open && html`<${InsidePanel} sentence=${settled} translation="" from="" of=${model.name} />`}
  `;
}

/** The probabilities of all labels, or the model's answer where it gives words labels. */
async function labels({ name, verbs }, text, signal) {
  const probabilities = verbs.includes("probabilities");
  const { outputs: [found] } = await ask("v1/predict", { inputs: [text], model: name, probabilities }, { signal });
  return probabilities ? { probabilities: Object.entries(found).sort(([, a], [, b]) => b - a) } : { text: found };
}
