// Small parts that several pages use.

import { html, useEffect, useState } from "./vendor/preact.js";
import { change, useApp } from "./store.js";
import { reason, say } from "./words.js";

const PATHS = {
  swap: "M7 7h12l-4-4M17 17H5l4 4",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  clear: "M6 6l12 12M18 6L6 18",
  speak: "M4 9v6h4l5 4V5L8 9zM16.5 8.5a5 5 0 0 1 0 7M19 6a9 9 0 0 1 0 12",
  stop: "M7 7h10v10H7z",
  link: "M10 14a4 4 0 0 0 6 0l3-3a4 4 0 0 0-6-6l-1 1M14 10a4 4 0 0 0-6 0l-3 3a4 4 0 0 0 6 6l1-1",
  upload: "M12 16V4M7 9l5-5 5 5M4 20h16",
  download: "M12 4v12M7 11l5 5 5-5M4 20h16",
  play: "M8 5l11 7-11 7z",
  record: "M12 4a3 3 0 0 1 3 3v5a3 3 0 0 1-6 0V7a3 3 0 0 1 3-3zM6 11a6 6 0 0 0 12 0M12 17v4",
};

/** A drawing; its meaning is said by what is around it. @param {{name: keyof PATHS}} given */
export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;
}

/** A button that is an icon; readers hear its name, others see it on hovering. */
export function IconButton({ icon, name, ...rest }) {
  return html`<button type="button" class="quiet" aria-label=${name} title=${name} ...${rest}>
    <${Icon} name=${icon} />
  </button>`;
}

/** A link that saves what the page has made. */
export function Save({ href, name, text = say("model.save") }) {
  return html`<a class="chip" href=${href} download=${name}><${Icon} name="download" />${text}</a>`;
}

/** A button that copies a text, and says so. @param {{text: () => string, name: string}} given */
export function Copy({ text, name, icon = "copy" }) {
  const [done, tell] = useState(false);
  const copy = async () => {
    await toClipboard(text());
    tell(true);
    setTimeout(() => tell(false), 2000);
  };
  return html`
    <${IconButton} icon=${icon} name=${name} onClick=${copy} />
    <span role="status" class="note">${done ? say("app.copied") : ""}</span>
  `;
}

async function toClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = Object.assign(document.createElement("textarea"), { value: text }); // no TLS
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** Where a key leads among some places, of which one has the focus; undefined for keys that lead nowhere. */
export function led(event, now, count) {
  const [next, before] = [(now + 1) % count, (now - 1 + count) % count];
  const to = { ArrowRight: next, ArrowDown: next, ArrowLeft: before, ArrowUp: before, Home: 0, End: count - 1 }[event.key];
  if (to !== undefined) event.preventDefault();
  return to;
}

/** A row of buttons of which one is chosen: by a click, or by keys that go along. */
function Row({ of, chosen, choose, button, children, ...rest }) {
  const move = (event) => {
    const to = led(event, of.findIndex(([each]) => each === chosen), of.length);
    if (to === undefined) return;
    choose(of[to][0]);
    event.currentTarget.querySelectorAll("button")[to].focus();
  };
  return html`<div ...${rest} onKeyDown=${move}>
    ${children}
    ${of.map(([each, text]) => html`<button type="button" key=${each} tabindex=${each === chosen ? 0 : -1} ...${button(each)}
      onClick=${() => choose(each)}>${text}</button>`)}
  </div>`;
}

/** The id of a tab; names of models may hold blanks, which ids may not. */
export const tabId = (id) => `tab-${encodeURIComponent(id)}`;

/**
 * Tabs whose panel follows them.
 * @param {{name: string, tabs: [string, string][], chosen: string, choose: (id: string) => void,
 *   panel: string}} given  panel: the id of what they change
 */
export function Tabs({ name, tabs, chosen, choose, panel, idOf = tabId }) {
  const button = (id) => ({ role: "tab", id: idOf(id), "aria-selected": id === chosen, "aria-controls": panel });
  return html`<${Row} class="tabs" role="tablist" aria-label=${name} of=${tabs} chosen=${chosen} choose=${choose} button=${button} />`;
}

/**
 * One of several, as a row of buttons of which one is pressed.
 * @param {{label: string, of: [value: any, text: any][], value: any, onChoose: (value: any) => void}} given
 */
export function Choice({ label, of, value, onChoose }) {
  const button = (each) => ({ role: "radio", "aria-checked": each === value });
  return html`<${Row} class="choice" role="radiogroup" aria-label=${label} of=${of} chosen=${value} choose=${onChoose} button=${button}>
    <span class="choice-name" aria-hidden="true">${label}</span>
  <//>`;
}

/** Something bad, beside what it concerns: what went wrong, or its children. */
export function Alert({ trouble, children }) {
  return html`<p class="alert" role="alert">${trouble ? reason(trouble) : children}</p>`;
}

/** A button for the other language of the page. */
export function Tongue() {
  const { tongue } = useApp();
  const other = tongue === "en" ? "ko" : "en";
  useEffect(() => {
    document.documentElement.lang = tongue;
  }, [tongue]);
  return html`<button type="button" class="quiet" lang=${other} onClick=${() => change({ tongue: other })}>${say("app.tongue")}</button>`;
}

/** A text that somebody writes for a model. */
export function Field({ name, text, write, ...rest }) {
  return html`<label class="field"><span>${name}</span>
    <textarea class="card" dir="auto" lang="" value=${text} onInput=${(event) => write(event.target.value)} ...${rest}></textarea>
  </label>`;
}

/** A number between two others, with its name and as it is shown. */
export function Slider({ name, value, choose, shown = value, ...range }) {
  return html`<label class="inline slider">${name} <input type="range" min="0" ...${range} value=${value} aria-valuetext=${shown}
    onInput=${(event) => choose(Number(event.target.value))} /> <output class="number">${shown}</output></label>`;
}

/** A module that is loaded when it is needed, shown by what is made of it. */
export function Loaded({ load, depends = [], children }) {
  const [part, keep] = useState(null);
  useEffect(() => void load().then(keep, () => keep({})), depends);
  if (!part) return null;
  return Object.keys(part).length ? children(part) : html`<${Alert}>${say("inside.missing")}<//>`;
}

/** Bars with names and numbers. @param {{rows: [string, number][], name: string}} given */
export function Bars({ rows, name }) {
  return html`<table class="bars">
    <caption class="for-readers">${name}</caption>
    <tbody>
      ${rows.map(([label, share]) => html`<tr>
        <th scope="row">${label}</th>
        <td class="bar-cell" aria-hidden="true"><span style=${{ width: `${100 * share}%` }}></span></td>
        <td class="number">${percent(share)}</td>
      </tr>`)}
    </tbody>
  </table>`;
}

/** A probability as people read it. */
export const percent = (share) =>
  share > 0 && share < 0.001 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`;

/** The labels of something, the likeliest first and large. @param {{rows: [string, number][]}} given */
export function Labels({ rows }) {
  return html`<section class="card" aria-label=${say("label.title")} aria-live="polite">
    <p class="answer" lang="" dir="auto">${rows[0][0]}</p>
    <${Bars} name=${say("label.title")} rows=${rows.slice(0, 8)} />
  </section>`;
}

/** Probabilities by label, the largest first. */
export const ranked = (probabilities) => Object.entries(probabilities).sort(([, a], [, b]) => b - a);

/** A value that follows another after it has been still for a while. */
export function useSettled(value) {
  const [settled, settle] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => settle(value), 300);
    return () => clearTimeout(timer);
  }, [value]);
  return settled;
}
