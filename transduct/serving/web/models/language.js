// A text that a language model goes on with, as it is written.

import { html, useState } from "../vendor/preact.js";
import { InsideOf } from "../panel.js";
import { Field, Slider } from "../parts.js";
import { events } from "../server.js";
import { say } from "../words.js";
import { Progress, useAnswer } from "../work.js";

/** @param {{model: import("./pages.js").Model}} props */
export function Page({ model }) {
  const [text, write] = useState("");
  const [more, show] = useState("");
  const [length, setLength] = useState(60);
  const [temperature, setTemperature] = useState(0.8);
  const [asked, ask] = useState(null);
  const found = useAnswer(asked && (async (signal) => {
    let written = "";
    for await (const { choices } of events("v1/completions", { model: model.name, stream: true, ...asked }, { signal })) {
      show((written += choices[0]?.text ?? ""));
    }
  }), [asked, model]);
  const go = () => ask({ prompt: text, max_tokens: length, temperature });
  const keep = () => {
    write(text + more);
    show("");
  };
  return html`
    <${Field} name=${say("language.prompt")} text=${text} write=${write} />
    <div class="row">
      <button type="button" class="chip" onClick=${go}>${say("language.go")}</button>
      <label class="inline">${say("language.length")} <input type="number" min="1" max="2000" value=${length}
        onInput=${(event) => setLength(Number(event.target.value))} /></label>
      <${Slider} name=${say("language.temperature")} max="2" step="0.1" value=${temperature} choose=${setTemperature}
        shown=${temperature.toFixed(1)} />
    </div>
    <${Progress} ...${found} />
    ${more && html`<section class="card" aria-label=${say("language.more")} aria-busy=${found.busy}>
      <p class="answer" lang="" dir="auto"><span class="soft">${text}</span>${more}</p>
      ${!found.busy && html`<div class="row"><button type="button" class="chip" onClick=${keep}>${say("language.keep")}</button></div>`}
    </section>`}
    <p class="for-readers" role="status" lang="">${found.busy ? "" : more}</p>
    ${text && html`<${InsideOf} model=${model} sentence=${text} />`}
  `;
}
