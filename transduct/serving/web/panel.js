// "Look inside": loaded when it opens, for one sentence and its translation.

import { html, useEffect, useState } from "./vendor/preact.js";
import { useApp } from "./store.js";
import { say } from "./words.js";

/**
 * @param {object} given
 * @param {string} given.sentence  the one that is looked at
 * @param {string} given.translation  of it
 */
export function InsidePanel({ sentence, translation }) {
  const { model, source, target, tongue } = useApp();
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
  const from = source === "auto" ? "" : source;
  return html`
    <section class="inside">
      <button class="quiet" aria-expanded=${open} disabled=${!sentence} onClick=${() => toggle(!open)}>
        ${say("inside.open")}
      </button>
      ${open && part && (part.Inside
        ? html`<${part.Inside} sentence=${sentence} translation=${translation} model=${model}
            source=${from} target=${target} language=${tongue} />`
        : html`<p role="alert">${say("inside.missing")}</p>`)}
    </section>
  `;
}
