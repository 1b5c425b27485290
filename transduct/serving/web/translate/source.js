// The text that is to be translated. Behind it lies the same text, in which a sentence can be lit.

import { html, useRef } from "../vendor/preact.js";
import { IconButton } from "../parts.js";
import { change, useApp } from "../store.js";
import { say } from "../words.js";

/**
 * @param {object} given
 * @param {import("./session.js").Piece[]} given.pieces
 * @param {number} given.lit  the sentence under the pointer or the caret, or -1
 * @param {[number, number]|null} given.span  the characters of it that a word was made from
 * @param {(place: number) => void} given.light
 * @param {(place: number) => void} given.choose
 */
export function Source({ pieces, lit, span, light, choose, language }) {
  const { text } = useApp();
  const area = useRef(null);
  const current = pieces.map((piece) => piece.text + piece.gap).join("") === text;
  const caret = () => choose(sentenceAt(pieces, area.current.selectionStart));
  const pointed = ({ clientX, clientY }) => {
    const under = document.elementsFromPoint(clientX, clientY);
    light(Number(under.find((one) => one.dataset.piece)?.dataset.piece ?? -1));
  };
  const clear = () => {
    change({ text: "" });
    area.current.focus();
  };
  return html`<section class="pane" aria-label=${say("text.source")}>
    <div class="paper" onPointerMove=${pointed} onPointerLeave=${() => light(-1)}>
      <div class="behind" aria-hidden="true">
        ${current ? pieces.map((piece, n) => html`<${Lit} piece=${piece} n=${n} lit=${n === lit}
          span=${n === lit ? span : null} />`) : text}${"\n"}
      </div>
      <textarea ref=${area} aria-label=${say("text.source")} placeholder=${say("text.hint")} dir="auto"
        lang=${language} spellcheck=${true} value=${text} onInput=${(event) => change({ text: event.target.value })}
        onKeyUp=${caret} onClick=${caret}></textarea>
    </div>
    <div class="foot">
      <span class="note" aria-label=${say("text.characters", { n: text.length })}>${text.length}</span>
      <span class="space"></span>
      ${text && html`<${IconButton} icon="clear" name=${say("text.clear")} onClick=${clear} />`}
    </div>
  </section>`;
}

function Lit({ piece: { text, gap }, n, lit, span }) {
  const [a, b] = span ?? [0, 0];
  const shown = span ? html`${text.slice(0, a)}<b>${text.slice(a, b)}</b>${text.slice(b)}` : text;
  return html`<span data-piece=${n} class=${lit ? "lit" : ""}>${shown}</span>${gap}`;
}

function sentenceAt(pieces, place) {
  let end = 0;
  for (const [n, { text, gap }] of pieces.entries()) {
    end += text.length + gap.length;
    if (place < end) return n;
  }
  return pieces.length - 1;
}
