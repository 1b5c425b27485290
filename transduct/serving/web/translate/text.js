// Text in, translation out, while it is being written.

import { html, useEffect, useMemo, useReducer, useState } from "../vendor/preact.js";
import { InsidePanel } from "../panel.js";
import { Alert, Copy, IconButton, useSettled } from "../parts.js";
import { change, useApp } from "../store.js";
import { say } from "../words.js";
import { Alternatives } from "./alternatives.js";
import { chooses, Languages, swappable, take, targetsOf } from "./languages.js";
import { Others } from "./others.js";
import { Output } from "./output.js";
import { AsRequest } from "./request.js";
import { Session } from "./session.js";
import { Source } from "./source.js";
import { useVoice } from "./speak.js";

export function TextPage() {
  const { text, source, target, model, beam, key, tongue } = useApp();
  const [, again] = useReducer((count) => count + 1, 0);
  const session = useMemo(() => new Session(again), []);
  const settled = useSettled(text);
  const [pointed, point] = useState(-1);
  const [active, activate] = useState(0);
  const [word, reach] = useState(null);
  const [asked, askFor] = useState(null); // the word whose alternatives are shown
  const [panel, open] = useState(""); // "others", "inside" or "request"
  useEffect(() => {
    const choice = { source, target, model, beam };
    askFor(null);
    void session.go(settled, choice, chooses() && targetsOf("auto").length > 1);
  }, [settled, source, target, model, beam, key]);
  const { pieces, fields } = session;
  const chosen = pieces[Math.min(active, pieces.length - 1)];
  const lit = pointed >= 0 ? pointed : word ? word.piece : -1;
  const choose = (found) => {
    activate(Math.max(0, found));
    reach(null);
  };
  const swap = () => {
    if (!swappable(source, target, session.detected)) return;
    const from = source === "auto" ? session.detected : source;
    change({ text: session.text });
    take(target, from);
  };
  const from = fields.from ?? "";
  const given = { sentence: chosen?.text ?? "", translation: chosen?.result.text ?? "" };
  return html`
    <${Languages} detected=${source === "auto" && settled ? session.detected : ""} swap=${swap} />
    <div class="panes" onKeyDown=${(event) => event.key === "Escape" && setTimeout(() => reach(null))}>
      <${Source} pieces=${pieces} lit=${lit} span=${spanOf(pieces, word)} light=${point} choose=${choose}
        language=${from} />
      <section class="pane translation" aria-label=${say("text.translation")} aria-busy=${session.busy}>
        <${Output} pieces=${pieces} language=${target} lit=${lit} word=${word} underline=${useApp().underline}
          tongue=${tongue} light=${(found) => point(found?.piece ?? -1)} reach=${(found) => {
            reach(found);
            activate(found.piece);
          }}
          open=${(found, anchor) => askFor({ ...found, anchor })} back=${(piece) => session.back(piece ?? active)}>
          ${asked && pieces[asked.piece]?.result.done && html`<${Alternatives} text=${pieces[asked.piece].text}
            target=${pieces[asked.piece].result.text} at=${asked.at} fields=${fields} language=${target}
            anchor=${asked.anchor} choose=${(other, prefix) => {
              void session.choose(asked.piece, other, prefix);
              asked.anchor.focus();
              askFor(null);
            }} close=${(back) => {
              if (back) asked.anchor.focus();
              askFor(null);
            }} />`}
        <//>
        ${session.trouble && html`<${Alert} trouble=${session.trouble} />`}
        <${Foot} session=${session} target=${target} />
      </section>
    </div>
    <p class="for-readers" role="status" lang=${target}>${session.busy ? "" : session.news}</p>
    <${Below} session=${session} panel=${panel} open=${open} />
    ${panel === "others" && chosen?.text && html`<${Others} sentence=${chosen.text} fields=${fields} language=${target}
      choose=${(other) => session.choose(pieces.indexOf(chosen), other)} />`}
    ${panel === "request" && html`<${AsRequest} fields=${fields}
      sentences=${pieces.map((piece) => piece.text).filter((each) => each.trim())} />`}
    ${panel === "inside" && html`<${InsidePanel} ...${given} from=${from} />`}
  `;
}

/** The characters of a sentence that a word of its translation was made from. */
function spanOf(pieces, word) {
  const tokens = word && pieces[word.piece]?.result.tokens;
  const spans = (tokens ?? []).filter(({ target }) => target && target[0] <= word.at && target[1] > word.at);
  return spans[0]?.source ?? null;
}

function Foot({ session, target }) {
  const speak = useVoice(target);
  const { text } = session;
  return html`<div class="foot">
    ${session.busy && html`<button type="button" class="stop" onClick=${() => session.stop()}>${say("text.stop")}</button>`}
    <span class="space"></span>
    ${text.trim() && html`
      ${speak && html`<${IconButton} icon="speak" name=${say("text.speak")} onClick=${() => speak(text)} />`}
      <${Copy} name=${say("text.copy")} text=${() => session.text} />`}
  </div>`;
}

/** What there is to say about the translation, and what can be opened below it. */
function Below({ session, panel, open }) {
  const { underline, text, source, target } = useApp();
  const count = session.pieces.filter((piece) => piece.text.trim()).length;
  const facts = { n: count, seconds: session.seconds.toFixed(2) };
  const toggle = (name) => html`<button type="button" class="chip" aria-expanded=${panel === name}
    data-opens=${name} onClick=${() => open(panel === name ? "" : name)}>${say(`${name}.title`)}</button>`;
  const link = () => `${location.href.split("#")[0]}#${source}/${target}/${encodeURIComponent(text)}`;
  return html`<div class="row below">
    <span class="note">${count > 0 && !session.busy ? say(count === 1 ? "text.fact" : "text.facts", facts) : ""}</span>
    <span class="space"></span>
    <label class="inline"><input type="checkbox" checked=${underline}
      onChange=${(event) => change({ underline: event.target.checked })} /> ${say("text.underline")}</label>
    ${count > 0 && html`${toggle("others")} ${toggle("inside")} ${toggle("request")}
      <${Copy} icon="link" name=${say("text.link")} text=${link} />`}
  </div>`;
}
