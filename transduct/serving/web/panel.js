// "Look inside": loaded when it opens, for one sentence and its translation.

import { html, useEffect, useState } from "./vendor/preact.js";
import { Alert } from "./parts.js";
import { useApp } from "./store.js";
import { say } from "./words.js";

/**
 * @param {object} given
 * @param {string} given.sentence  the one that is looked at
 * @param {string} given.translation  of it
 * @param {string} given.from  its language, "" if nobody knows
 */
export function InsidePanel({ sentence, translation, from }) {
  const { model, target, tongue } = useApp();
  const [open, toggle] = useState(false);
  const [part, load] = useState(null);
  useEffect(() => {
    if (open && !part) {
      import("./inside/index.js").then(
        (module) => load({ Inside: module.Inside }),
        () => load({}),
      );
    }
  }, [open]);
  if (!sentence) return null;
  return html`
    <section class="inside" aria-label=${say("inside.open")}>
      <button type="button" class="chip" aria-expanded=${open} onClick=${() => toggle(!open)}>
        ${say("inside.open")}
      </button>
      ${open && part && (part.Inside
        ? html`<div class="card"><${part.Inside} sentence=${sentence} translation=${translation} model=${model}
            source=${from} target=${target} language=${tongue} /></div>`
        : html`<${Alert}>${say("inside.missing")}<//>`)}
    </section>
  `;
}
