// The inside of one sentence: a strip that says what is shown, and the views.

import { html, useMemo, useState } from "../vendor/preact.js";
import { Tabs } from "../parts.js";
import { Attention, sidesOf, kindsOf } from "./attention.js";
import { Beam } from "./beam.js";
import { useData } from "./data.js";
import { Model } from "./model.js";
import { Next } from "./next.js";
import { Positions } from "./positions.js";
import { Walk, walkOf } from "./walk.js";
import { label, say } from "./words.js";

const VIEWS = { attention: Attention, next: Next, beam: Beam, positions: Positions, model: Model };

/**
 * @param {object} given
 * @param {(view: string, more?: object) => Promise<object>} given.get  asks for a view's numbers
 * @param {string} given.model  its name
 * @param {boolean} given.local  whether all numbers are there, and no model can be asked
 * @param {((prefix: number[]) => void)|null} given.goOn  writes anew after some tokens
 */
export function Views(given) {
  const [found, trouble] = useData(given.get, "sentence");
  if (!found) return html`<p class="inside-views" role=${trouble ? "alert" : "status"}>${trouble ?? say("waiting")}</p>`;
  return html`<div class="inside-views"><${Opened} key=${found.tokens.join()} sentence=${found} ...${given} /></div>`;
}

let last = {}; // what was looked at stays when the sentence changes

function Opened({ sentence, get, model, text, local = false, goOn = null }) {
  const steps = useMemo(() => walkOf(sentence), [sentence]);
  const [state, set] = useState(() => {
    const heads = [...Array(Math.max(1, ...sentence.maps.map((map) => map.heads))).keys()];
    const look = { kind: "cross", layer: 99, heads, large: "mean", by: "words", beam: 0 };
    return { view: sentence.views[0], look, walk: null, steps: {}, ...last };
  });
  const change = (some) => {
    last = { ...state, ...some, steps: {} };
    set((before) => ({ ...before, ...some }));
  };
  const view = sentence.views.includes(state.view) ? state.view : sentence.views[0];
  const { look } = state;
  const kind = kindsOf(sentence.maps)[look.kind] ? look.kind : "decoder";
  const reads = view === "attention" && (kind === "encoder" || !sentence.sides.written.pieces.length);
  const side = reads ? "source" : "written";
  const rows = view === "attention" ? sidesOf(sentence, reads ? "encoder" : kind, look.by)[0] : sentence.sides.written.pieces;
  const step = state.steps[side] ?? rows[0]?.first ?? 0;
  const onStep = (to) => change({ steps: { ...state.steps, [side]: to } });
  const walk = (at) => {
    const to = steps[at] ?? {};
    change({ walk: at, view: to.view ?? view, look: { ...look, ...to.look } });
  };
  const given = {
    sentence, get, look, step, onStep, local, goOn,
    change: (some) => change({ look: { ...look, ...some } }),
    openLayer: (of, layer) => change({ view: "attention", look: { ...look, kind: of, layer } }),
  };
  return html`
    <${Strip} sentence=${sentence} model=${model} text=${text} rows=${rows} step=${step} onStep=${onStep}
      steps=${view === "attention" || view === "next"} side=${side} />
    <div class="tabs-line">
      <${Tabs} name=${say("strip.views")} tabs=${sentence.views.map((each) => [each, say(`view.${each}`)])} chosen=${view}
        choose=${(to) => change({ view: to })} panel="inside-view" idOf=${(each) => `inside-tab-${each}`} />
      ${state.walk === null && html`
        <button type="button" class="start" onClick=${() => walk(0)}>${say("walk.start")}</button>`}
    </div>
    ${state.walk !== null && html`
      <${Walk} sentence=${sentence} steps=${steps} at=${Math.min(state.walk, steps.length - 1)} onGo=${walk} />`}
    <div role="tabpanel" id="inside-view" class=${`view view-${view}`} aria-labelledby=${`inside-tab-${view}`}>
      <${VIEWS[view]} ...${given} />
    </div>
  `;
}

/** What is shown: model, sentence and step. */
function Strip({ sentence, model, text, rows, step, onStep, steps, side }) {
  const now = Math.max(0, rows.findIndex(({ first, last: end }) => first <= step && step <= end));
  const lit = (pieces, on) => pieces.filter(({ special }) => !special).map((piece, n) => html`
    ${n > 0 && !close(piece, pieces[n]) ? " " : ""}<span key=${piece.first}
      class=${on && steps && rows[now] && piece.first <= rows[now].last && rows[now].first <= piece.last ? "here" : ""}>${label(piece)}</span>`);
  const { source, written } = sentence.sides;
  const go = (by) => onStep(rows[Math.min(rows.length - 1, Math.max(0, now + by))].first);
  return html`
    <dl class="strip">
      ${model && html`<div><dt>${say("strip.model")}</dt><dd>${model}</dd></div>`}
      <div><dt>${say("strip.sentence")}</dt>
        <dd lang="" dir="auto" ...${long(source.words)}>${source.words.length ? lit(source.words, side === "source") : text}</dd></div>
      ${written.words.length > 0 && html`
        <div><dt>${say("strip.translation")}</dt>
          <dd lang="" dir="auto" ...${long(written.words)}>${lit(written.words, side === "written")}</dd></div>`}
      ${steps && rows.length > 1 && html`
        <div class="steps"><dt>${say("strip.step")}</dt>
          <dd>
            <button type="button" aria-label=${say("strip.before")} disabled=${now === 0} onClick=${() => go(-1)}>‹</button>
            <output>${say("strip.of", { step: now + 1, count: rows.length })}: <b dir="auto">${label(rows[now])}</b></output>
            <button type="button" aria-label=${say("strip.next")} disabled=${now === rows.length - 1} onClick=${() => go(1)}>›</button>
          </dd></div>`}
    </dl>
  `;
}

/** A long text scrolls, for the keyboard too. */
const long = (words) => (words.length > 60 ? { class: "long", tabindex: 0 } : {});

/** Whether a word stands close to the one before, as a full stop does. */
const close = ({ text }) => /^[\p{P}]+$/u.test(text) && !/^[([{«„“]/.test(text);
