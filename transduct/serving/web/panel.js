// "Look inside": loaded when it opens, for one sentence and its translation.

import { html, useState } from "./vendor/preact.js";
import { Loaded } from "./parts.js";
import { useApp } from "./store.js";
import { say } from "./words.js";

/**
 * @param {object} given
 * @param {string} [given.of]  the name of a model; that of the translation if not given
 * @param {string} given.sentence  the one that is looked at
 * @param {string} [given.translation]  of it
 * @param {string} [given.from]  its language, "" if nobody knows
 */
export function InsidePanel({ sentence, translation = "", from = "", of }) {
  const { model, target } = useApp();
  return sentence && html`<${Loaded} load=${() => import("./inside/index.js")}>${({ Inside }) => html`
    <section class="card inside" aria-label=${say("inside.title")}>
      <${Inside} sentence=${sentence} translation=${translation} model=${of ?? model} source=${from} target=${of ? "" : target} />
    </section>`}<//>`;
}

/** A button that opens the panel for the text of a model. */
export function InsideOf({ model, sentence }) {
  const [open, toggle] = useState(false);
  return html`<div class="row"><button type="button" class="chip" aria-expanded=${open}
      onClick=${() => toggle(!open)}>${say("inside.title")}</button></div>
    ${open && html`<${InsidePanel} sentence=${sentence} of=${model.name} />`}`;
}
