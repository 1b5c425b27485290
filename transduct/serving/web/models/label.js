// A text and the label that a model gives it.

import { html, useState } from "../vendor/preact.js";
import { InsideOf } from "../panel.js";
import { Field, Labels, ranked, useSettled } from "../parts.js";
import { ask } from "../server.js";
import { say } from "../words.js";
import { Progress, useAnswer } from "../work.js";

/** @param {{model: import("./pages.js").Model}} props */
export function Page({ model }) {
  const [text, write] = useState("");
  const settled = useSettled(text);
  const found = useAnswer(settled.trim() ? (signal) => labels(model, settled, signal) : null, [settled, model]);
  const rows = found.answer?.probabilities;
  return html`
    <${Field} name=${say("model.text")} text=${text} write=${write} />
    <${Progress} ...${found} />
    ${rows && html`<${Labels} rows=${rows} />`}
    ${found.answer?.text && html`<p class="card answer" lang="" dir="auto" aria-live="polite">${found.answer.text}</p>`}
    ${found.answer && html`<${InsideOf} model=${model} sentence=${settled} />`}
  `;
}

/** The probabilities of all labels, or the model's answer where it gives words labels. */
async function labels({ name, verbs }, text, signal) {
  const probabilities = verbs.includes("probabilities");
  const { outputs: [found] } = await ask("v1/predict", { inputs: [text], model: name, probabilities }, { signal });
  return probabilities ? { probabilities: ranked(found) } : { text: found };
}
