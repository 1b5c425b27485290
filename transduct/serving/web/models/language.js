// A text that a language model goes on with, as it is written.

import { html, useRef, useState } from "../vendor/preact.js";
import { InsidePanel } from "../panel.js";
import { Alert } from "../parts.js";
import { events } from "../server.js";
import { say } from "../words.js";

/** @param {{model: import("./pages.js").Model}} props */
export function Page({ model }) {
  const [text, write] = useState("");
  const [more, show] = useState("");
  const [length, setLength] = useState(60);
  const [temperature, setTemperature] = useState(0.8);
  const [trouble, tell] = useState(null);
  const [open, toggle] = useState(false);
  const control = useRef(null);
  const [busy, work] = useState(false);
  const go = async () => {
    control.current = new AbortController();
    const { signal } = control.current;
    const body = { model: model.name, prompt: text, stream: true, max_tokens: length, temperature };
    let found = "";
    tell(null);
    work(true);
    try {
      for await (const { choices } of events("v1/completions", body, { signal })) {
        found += choices[0]?.text ?? "";
        show(found);
      }
    } catch (error) {
      if (error.kind !== "stopped") tell(error);
    }
    work(false);
  };
  const keep = () => {
    write(text + more);
    show("");
  };
  return html`
    <label class="field"><span>${say("language.prompt")}</span>
      <textarea class="card" dir="auto" lang="" value=${text} onInput=${(event) => write(event.target.value)}></textarea>
    </label>
    <div class="row">
      ${busy
        ? html`<button type="button" class="chip" onClick=${() => control.current.abort()}>${say("text.stop")}</button>`
        : html`<button type="button" class="chip" onClick=${go}>${say("language.go")}</button>`}
      <label class="inline">${say("language.length")} <input type="number" min="1" max="2000" value=${length}
        onInput=${(event) => setLength(Number(event.target.value))} /></label>
      <label class="inline">${say("language.temperature")} <input type="range" min="0" max="2" step="0.1"
        value=${temperature} onInput=${(event) => setTemperature(Number(event.target.value))} />
        <output class="number">${temperature.toFixed(1)}</output></label>
    </div>
    ${trouble && html`<${Alert}>${trouble.message || say(`trouble.${trouble.kind}`)}<//>`}
    ${more && html`<section class="card" aria-label=${say("language.more")} aria-busy=${busy}>
      <p class="answer" lang="" dir="auto"><span class="soft">${text}</span>${more}</p>
      ${!busy && html`<div class="row"><button type="button" class="chip" onClick=${keep}>${say("language.keep")}</button></div>`}
    </section>`}
    <p class="for-readers" role="status" lang="">${busy ? "" : more}</p>
    ${text && html`<div class="row"><button type="button" class="chip" aria-expanded=${open}
      onClick=${() => toggle(!open)}>${say("inside.title")}</button></div>`}
    ${text && open && html`<${InsidePanel} sentence=${text} translation="" from="" of=${model.name} />`}
  `;
}
