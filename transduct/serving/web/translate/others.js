// Other translations of one sentence, as the search ranks them.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Alert } from "../parts.js";
import { ask } from "../server.js";
import { say } from "../words.js";

const WANTED = 5;

/** @param {{sentence: string, fields: object, choose: (text: string) => void}} given */
export function Others({ sentence, fields, language, choose }) {
  const [found, show] = useState(null);
  useEffect(() => {
    const control = new AbortController();
    const search = { n_best: WANTED, beam: Math.max(WANTED, fields.beam ?? 0) };
    ask("v1/translate", { texts: [sentence], ...fields, ...search }, { signal: control.signal })
      .then(({ translations }) => show(translations[0]))
      .catch((error) => error.kind !== "stopped" && show({ error: error.message || say(`trouble.${error.kind}`) }));
    return () => control.abort();
  }, [sentence, fields]);
  return html`<section class="card" aria-label=${say("others.title")} aria-busy=${!found}>
    <p class="note" lang="" dir="auto">${sentence}</p>
    ${found?.error && html`<${Alert}>${found.error}<//>`}
    <ol class="others">
      ${found?.alternatives?.map(({ text, score }) => html`<li>
        <button type="button" class="quiet wide" lang=${language} dir="auto" onClick=${() => choose(text)}>${text}</button>
        <span class="number" title=${say("others.score")}>${score.toFixed(2)}</span>
      </li>`)}
    </ol>
    <p class="note">${say("others.score")}</p>
  </section>`;
}
