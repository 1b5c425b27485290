// Other translations of one sentence, as the search ranks them.

import { html } from "../vendor/preact.js";
import { Alert } from "../parts.js";
import { ask } from "../server.js";
import { say } from "../words.js";
import { useAnswer } from "../work.js";

const WANTED = 5;

/** @param {{sentence: string, fields: object, choose: (text: string) => void}} given */
export function Others({ sentence, fields, language, choose }) {
  const search = { texts: [sentence], ...fields, n_best: WANTED, beam: Math.max(WANTED, fields.beam ?? 0) };
  const { answer, trouble, busy } = useAnswer((signal) => ask("v1/translate", search, { signal }), [sentence, fields]);
  return html`<section class="card" aria-label=${say("others.title")} aria-busy=${busy}>
    <p class="note" lang="" dir="auto">${sentence}</p>
    ${trouble && html`<${Alert} trouble=${trouble} />`}
    <ol class="others">
      ${answer?.translations[0].alternatives.map(({ text, score }) => html`<li>
        <button type="button" class="quiet wide" lang=${language} dir="auto" onClick=${() => choose(text)}>${text}</button>
        <span class="number" title=${say("others.score")}>${score.toFixed(2)}</span>
      </li>`)}
    </ol>
    <p class="note">${say("others.score")}</p>
  </section>`;
}
