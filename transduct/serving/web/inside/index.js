// What happens inside the model for one sentence.

import { html } from "../vendor/preact.js";

/**
 * @param {object} given
 * @param {string} given.sentence
 * @param {string} given.translation  the model's, or the one that was chosen
 * @param {string} given.model  its name; "" for the one that the languages need
 * @param {string} given.source  language of the sentence; "" for the server's choice
 * @param {string} given.target
 * @param {string} given.language  of the page, "en" or "ko"
 */
export function Inside({ sentence, translation }) {
  return html`<p>${sentence} - ${translation}</p>`;
}
