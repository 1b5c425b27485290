// The translation: sentences of words that can be reached, lit and changed.

import { Component, html, useRef } from "../vendor/preact.js";
import { say } from "../words.js";
import { probability, words } from "./sentences.js";

const UNLIKELY = 0.5; // the probability below which a word is underlined

/**
 * @param {object} given
 * @param {import("./session.js").Piece[]} given.pieces
 * @param {{piece: number, at: number}|null} given.word  the one that has the focus
 * @param {(word: {piece: number, at: number}, element: Element) => void} given.open
 */
export function Output({ pieces, language, lit, word, underline, light, reach, open, back, children }) {
  const box = useRef(null);
  const first = { piece: pieces.findIndex(({ result }) => result.text), at: -1 };
  const held = word ?? first;
  const key = (event) => {
    const element = event.target.closest(".word");
    if (event.key === "Escape") back(placeOf(element)?.piece);
    if (!element || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      open(placeOf(element), element);
    }
    const next = beside(box.current, element, event.key);
    if (!next) return;
    event.preventDefault();
    reach(placeOf(next));
    next.focus();
  };
  const click = (event) => {
    const element = event.target.closest(".word");
    if (!element || !getSelection().isCollapsed) return; // somebody selects text
    reach(placeOf(element));
    open(placeOf(element), element);
  };
  const point = (event) => light(placeOf(event.target.closest("[data-piece]")));
  return html`<div class="paper output" ref=${box} lang=${language} dir="auto" onKeyDown=${key} onClick=${click}
    onPointerOver=${point} onPointerLeave=${() => light(null)} onFocusIn=${point}>
    ${pieces.map((piece, n) => html`<${Sentence} key=${n} n=${n} result=${piece.result} gap=${piece.gap}
      language=${language} lit=${n === lit} underline=${underline}
      held=${held.piece === n ? held.at : null} />`)}
    ${children}
  </div>`;
}

/** One sentence; it is drawn again only if it changes. A result that is not done changes in place. */
class Sentence extends Component {
  shouldComponentUpdate(next) {
    return Object.keys(next).some((name) => next[name] !== this.props[name]) || !this.done;
  }

  render({ n, result, gap, language, lit, underline, held }) {
    this.done = result.done;
    if (result.error) return html`<span class="alert" role="alert">${result.error}</span>${gap}`;
    const parts = words(result.text, language);
    const start = parts.find(({ word }) => word)?.at;
    const focus = held === -1 ? start : held;
    const kind = `sentence${lit ? " lit" : ""}${result.stale ? " stale" : ""}`;
    return html`<span data-piece=${n} class=${kind}>
      ${parts.map((part) => !part.word ? part.text : html`<${Word} part=${part} n=${n}
        focus=${part.at === focus} p=${probability(part, result.tokens)} underline=${underline} />`)}</span>${gap}`;
  }
}

function Word({ part, n, focus, p, underline }) {
  const unlikely = underline && p < UNLIKELY;
  return html`<span class=${`word${unlikely ? " unlikely" : ""}`} role="button" aria-haspopup="listbox"
    data-inline data-piece=${n} data-at=${part.at} tabindex=${focus ? 0 : -1}
    title=${unlikely ? say("text.sure", { percent: Math.round(100 * p) }) : undefined}>${part.text}</span>`;
}

const placeOf = (element) =>
  element && { piece: Number(element.dataset.piece), at: Number(element.dataset.at ?? -1) };

/** The word that a key leads to. */
function beside(box, element, key) {
  const all = [...box.querySelectorAll(".word")];
  const place = all.indexOf(element);
  const piece = Number(element.dataset.piece);
  const starts = (n) => all.find(({ dataset }) => Number(dataset.piece) === n);
  return {
    ArrowRight: () => all[place + 1],
    ArrowLeft: () => all[place - 1],
    ArrowDown: () => starts(piece + 1),
    ArrowUp: () => starts(piece - 1),
    Home: () => starts(piece),
    End: () => all.findLast(({ dataset }) => Number(dataset.piece) === piece),
  }[key]?.();
}
