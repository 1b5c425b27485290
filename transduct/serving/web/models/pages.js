// Which page a model has: by what it reads and by what it can do, so that new tasks find theirs.

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

/** The module of a model's page, whose `Page` shows it. @param {Model} model */
export function pageOf(model) {
  const kinds = { text: OF_TEXT, picture: OF_PICTURE, sound: OF_SOUND }[model.reads];
  return kinds.find(([fits]) => fits(model))[1]();
}
