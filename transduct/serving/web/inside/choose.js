// Controls that the views share: one of several, and a step among many.

import { html, useRef } from "../vendor/preact.js";

/**
 * One of several, as a row of buttons of which one is pressed; arrow keys go along.
 * @param {object} given
 * @param {string} given.label
 * @param {[value: any, text: any][]} given.of
 * @param {any} given.value
 * @param {(value: any) => void} given.onChoose
 */
export function Choice({ label, of, value, onChoose }) {
  const all = useRef(null);
  const move = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const now = of.findIndex(([each]) => each === value);
    const next = (now + by + of.length) % of.length;
    onChoose(of[next][0]);
    all.current.querySelectorAll("[role=radio]")[next].focus();
  };
  return html`
    <div class="choice" role="radiogroup" aria-label=${label} ref=${all} onKeyDown=${move}>
      <span class="choice-name" aria-hidden="true">${label}</span>
      ${of.map(([each, text]) => html`
        <button type="button" role="radio" aria-checked=${each === value} key=${each}
          tabindex=${each === value ? 0 : -1} onClick=${() => onChoose(each)}>${text}</button>`)}
    </div>
  `;
}

/**
 * Moves among rows of something that has the focus: the number of the row that a key leads to, or
 * null for other keys.
 */
export function moved(event, now, count, { next = "ArrowDown", before = "ArrowUp" } = {}) {
  const to = { [next]: now + 1, [before]: now - 1, Home: 0, End: count - 1 }[event.key];
  if (to === undefined) return null;
  event.preventDefault();
  return Math.min(count - 1, Math.max(0, to));
}
