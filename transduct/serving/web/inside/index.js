// What happens inside the model for one sentence; the page loads it when "Look inside" opens.

import { html, useEffect, useMemo, useState } from "../vendor/preact.js";
import { ask } from "../server.js";
import { kept } from "./data.js";
import { Views } from "./views.js";
import { say } from "./words.js";

/**
 * @param {object} given
 * @param {string} given.sentence
 * @param {string} given.translation  the model's, or the one that was chosen
 * @param {string} given.model  its name; "" for the one that the languages need
 * @param {string} given.source  language of the sentence; "" for the server's choice
 * @param {string} given.target
 */
export function Inside({ sentence, translation, model, source, target }) {
  const [drawn, load] = useState(Boolean(globalThis.d3));
  const [prefix, goOn] = useState(null);
  useEffect(() => {
    if (!drawn) import("../vendor/d3.js").then(() => load(true));
  }, []);
  useEffect(() => goOn(null), [sentence, translation]);
  const get = useMemo(() => {
    const about = { text: sentence, from: source, to: target };
    if (model) about.model = model;
    return asking(about, translation, prefix);
  }, [sentence, translation, model, source, target, prefix]);
  if (!drawn) return null;
  return html`
    <link rel="stylesheet" href=${new URL("style.css", import.meta.url).href} />
    ${prefix && html`<p class="inside-views went-on">${say("went.on")}
      <button type="button" onClick=${() => goOn(null)}>${say("went.back")}</button></p>`}
    <${Views} get=${get} model=${model} text=${sentence} goOn=${goOn} />`;
}

/** A function that asks the server for views of one sentence, whose tokens are found first. */
function asking(about, translation, prefix) {
  const inspect = (more) => ask("v1/inspect", { ...about, ...more });
  const first = async () => {
    if (prefix) return inspect({ view: "sentence", prefix });
    const own = await inspect({ view: "sentence" });
    // The model's own tokens if they are this translation, else those of its text.
    if (!translation || !own.tokens.length || own.text === translation.trim()) return own;
    return inspect({ view: "sentence", target: translation });
  };
  const sentence = kept(first);
  return kept(async (view, more) => {
    const found = await sentence("sentence");
    if (view === "sentence") return found;
    if (view === "beam") return inspect({ view, ...more, ...(prefix && { prefix }) });
    return inspect({ view, ...more, ...(found.tokens.length && { target: found.tokens }) });
  });
}
