// Speech and its text: each word below the place where it was heard.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { Alert, Icon } from "../parts.js";
import { ask } from "../server.js";
import { NumberTable } from "../table.js";
import { say } from "../words.js";
import { address, Progress, useAnswer } from "../work.js";
import { FileChoice, useAddress, useFile } from "./file.js";
import { unpacked } from "../inside/numbers.js";
import { record, samplesOf, seconds, spectrum, wave, wavOf } from "./sound.js";

const [WIDE, HIGH, BANDS] = [640, 80, 48]; // pixels of the drawings

/** @param {{model: import("./pages.js").Model, given: File[], taken: () => void}} props */
export function Page({ model, given, taken }) {
  const [file, choose] = useFile(given, taken);
  const [samples, hear] = useState(null);
  const [trouble, tell] = useState(null);
  const player = useRef(null);
  const url = useAddress(file);
  useEffect(() => {
    hear(null);
    if (file) samplesOf(file).then(hear, () => {}); // the server says what is wrong with it
  }, [file]);
  const ofFile = (path) => file && ((signal) => ask(address(path, { model: model.name }), file, { signal }));
  const found = useAnswer(ofFile("v1/predict"), [file, model]);
  const looked = useAnswer(found.answer?.outputs[0] ? ofFile("v1/inspect") : null, [found.answer]);
  const words = looked.answer ? wordsOf(looked.answer.panels[0]) : [];
  const play = (from) => {
    player.current.currentTime = from;
    void player.current.play();
  };
  return html`
    <${FileChoice} kind="sound" file=${file} choose=${choose}><${Recorder} choose=${choose} tell=${tell} /><//>
    ${trouble && html`<${Alert}>${trouble}<//>`}
    <${Progress} ...${found} />
    ${file && html`<section class="card">
      <audio ref=${player} controls src=${url} aria-label=${file.name}></audio>
      ${samples && html`<${Drawings} samples=${samples} />`}
      ${samples && words.length > 0 && html`<ol class="heard" aria-label=${say("speech.words")}>
        ${words.map(({ text, from }) => html`<li style=${{ left: `${(100 * from) / seconds(samples)}%` }}>
          <button type="button" class="quiet" title=${`${from.toFixed(2)} s`} lang="" onClick=${() => play(from)}>${text}</button></li>`)}
      </ol>`}
      ${found.answer && html`<p class="answer" lang="" dir="auto" aria-live="polite">${found.answer.outputs[0] || say("speech.nothing")}</p>`}
      ${words.length > 0 && html`<${NumberTable} caption=${say("speech.words")} columns=${[say("speech.word"), say("speech.seconds")]}
        count=${words.length} depends=${[looked.answer]} row=${(n) => [words[n].text, words[n].from.toFixed(3)]} />`}
    </section>`}
  `;
}

/** A button that records from the microphone, and stops. */
function Recorder({ choose, tell }) {
  const [stop, begin] = useState(null);
  const press = async () => {
    tell(null);
    try {
      if (!stop) {
        const end = await record();
        return begin(() => end);
      }
      choose(wavOf(await stop()));
    } catch {
      tell(say("speech.silent"));
    }
    return begin(null);
  };
  if (!navigator.mediaDevices) return null; // no TLS: browsers give no microphone
  return html`<button type="button" class="chip" aria-pressed=${!!stop} onClick=${press}>
    <${Icon} name=${stop ? "stop" : "record"} />${say(stop ? "speech.stop" : "speech.record")}</button>`;
}

function Drawings({ samples }) {
  const [above, below] = [useRef(null), useRef(null)];
  useLayoutEffect(() => {
    const colour = getComputedStyle(above.current).color;
    const [first, second] = [above, below].map(({ current }) => current.getContext("2d"));
    for (const context of [first, second]) context.fillStyle = colour;
    second.clearRect(0, 0, WIDE, BANDS);
    wave(first, samples, WIDE, HIGH);
    void spectrum(second, samples, WIDE, BANDS);
  }, [samples]);
  return html`<canvas ref=${above} class="sound" width=${WIDE} height=${HIGH} role="img" aria-label=${say("speech.wave")}></canvas>
    <canvas ref=${below} class="sound" width=${WIDE} height=${BANDS} role="img" aria-label=${say("speech.spectrum")}></canvas>`;
}

/** The words of some tokens, each where its first token was heard most. */
function wordsOf({ rows, columns, shape, ...packed }) {
  const values = unpacked(packed);
  const words = [];
  rows.forEach((token, row) => {
    const part = values.slice(row * shape[1], (row + 1) * shape[1]);
    const from = Number(columns[part.indexOf(Math.max(...part))]);
    const text = token.replace(/^[▁Ġ]/, "");
    if (!row || text !== token || /^\s*$/.test(token)) words.push({ text: text.trim(), from });
    else if (words.length) words.at(-1).text += text;
  });
  return words.filter(({ text }) => text && !text.startsWith("<"));
}
