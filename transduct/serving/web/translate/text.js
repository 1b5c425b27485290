// Text in, translation out.

import { html, useState } from "../vendor/preact.js";
import { InsidePanel } from "../panel.js";
import { events } from "../server.js";
import { change, useApp } from "../store.js";
import { say } from "../words.js";

export function TextPage() {
  const { text } = useApp();
  const [translation, show] = useState("");
  const go = async () => {
    let found = "";
    for await (const event of events("v1/translate", { texts: [text], stream: true })) {
      found = event.translations?.[0].text ?? found + event.delta;
      show(found);
    }
  };
  return html`
    <section class="panes">
      <textarea class="pane" aria-label=${say("text.source")} placeholder=${say("text.hint")}
        dir="auto" value=${text} onInput=${(event) => change({ text: event.target.value })}
        onBlur=${go}></textarea>
      <div class="pane" role="region" aria-label=${say("text.translation")} dir="auto">${translation}</div>
    </section>
    <${InsidePanel} sentence=${text} translation=${translation} />
  `;
}
