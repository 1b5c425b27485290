// Which page a model has: by what it reads and by what it can do, so that new tasks find theirs.

import { html } from "../vendor/preact.js";
import { Loaded } from "../parts.js";

/** @typedef {{name: string, reads: string, paints: boolean, verbs: string[]}} Model */

const OF_TEXT = [
  [({ paints }) => paints, () => import("./painting.js")],
  [({ verbs }) => verbs.includes("embed") && verbs.includes("attention"), () => import("./label.js")],
  [({ verbs }) => verbs.includes("embed"), () => import("./plain.js")],
  [() => true, () => import("./language.js")],
];
const OF_PICTURE = [
  [({ verbs }) => verbs.includes("probabilities"), () => import("./picture.js")],
  [({ paints }) => paints, () => import("./codes.js")],
  [() => true, () => import("./detection.js")],
];
const OF_SOUND = [[() => true, () => import("./speech.js")]];

/** The page of a model, loaded when it is opened. @param {{model: Model, given: File[], taken: () => void}} props */
export function ModelPage(props) {
  const kinds = { text: OF_TEXT, picture: OF_PICTURE, sound: OF_SOUND }[props.model.reads];
  const [, load] = kinds.find(([fits]) => fits(props.model));
  return html`<${Loaded} load=${load} depends=${[props.model]}>${({ Page }) => html`<${Page} ...${props} />`}<//>`;
}
