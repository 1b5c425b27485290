// The page of a model that does not translate, loaded when it is opened.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Alert } from "../parts.js";
import { say } from "../words.js";
import { pageOf } from "./pages.js";

/** @param {{model: import("./pages.js").Model, given: File[], taken: () => void}} props */
export function ModelPage({ model, given, taken }) {
  const [part, load] = useState(null);
  useEffect(() => {
    pageOf(model).then(load, () => load({}));
  }, [model]);
  if (!part) return null;
  if (!part.Page) return html`<${Alert}>${say("inside.missing")}<//>`;
  return html`<${part.Page} model=${model} given=${given} taken=${taken} />`;
}
