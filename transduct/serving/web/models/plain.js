// A text and a model's answer to it.

import { html, useState } from "../vendor/preact.js";
import { Field } from "../parts.js";
import { ask } from "../server.js";
import { say } from "../words.js";
import { Progress, useAnswer } from "../work.js";

/** @param {{model: import("./pages.js").Model}} props */
export function Page({ model }) {
  const [text, write] = useState("");
  const [asked, send] = useState("");
  const question = (signal) => ask("v1/predict", { inputs: [asked], model: model.name }, { signal });
  const found = useAnswer(asked ? question : null, [asked, model]);
  return html`
    <${Field} name=${say("model.text")} text=${text} write=${write} placeholder="The [MASK] sat." />
    <div class="row"><button type="button" class="chip" onClick=${() => send(text)}>${say("model.ask")}</button></div>
    <${Progress} ...${found} />
    ${found.answer && html`<p class="card answer" lang="" dir="auto" aria-live="polite">${found.answer.outputs[0]}</p>`}
  `;
}
