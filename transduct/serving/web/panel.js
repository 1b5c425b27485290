// "Look inside": loaded when it opens, for one sentence and its translation.

import { html, useEffect, useState } from "./vendor/preact.js";
import { Alert } from "./parts.js";
import { useApp } from "./store.js";
import { say } from "./words.js";

/**
 * @param {object} given
 * @param {string} [given.of]  the name of a model; that of the translation if not given
 * @param {string} given.sentence  the one that is looked at
 * @param {string} given.translation  of it
 * @param {string} given.from  its language, "" if nobody knows
 */
export function InsidePanel({ sentence, translation, from, of }) {
  const { model, target, tongue } = useApp();
  const [part, load] = useState(null);
  useEffect(() => {
    import("./inside/index.js").then(
      (module) => load({ Inside: module.Inside }),
      () => load({}),
    );
  }, []);
  if (!sentence || !part) return null;
  if (!part.Inside) return html`<${Alert}>${say("inside.missing")}<//>`;
  return html`<section class="card inside" aria-label=${say("inside.title")}>
    <${part.Inside} sentence=${sentence} translation=${translation} model=${of ?? model}
      source=${from} target=${of ? "" : target} language=${tongue} />
  </section>`;
}
