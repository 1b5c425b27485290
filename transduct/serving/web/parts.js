// Small parts that several pages use.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { say } from "./words.js";

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

/** The id of a tab; names of models may hold blanks, which ids may not. */
export const tabId = (id) => `tab-${encodeURIComponent(id)}`;

/**
 * Tabs whose panel follows them.
 * @param {{name: string, tabs: [string, string][], chosen: string, choose: (id: string) => void,
 *   panel: string}} given  panel: the id of what they change
 */
export function Tabs({ name, tabs, chosen, choose, panel }) {
  const row = useRef(null);
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const place = tabs.findIndex(([id]) => id === chosen) + step;
    const next = (place + tabs.length) % tabs.length;
    choose(tabs[next][0]);
    row.current.children[next].focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${name} ref=${row} onKeyDown=${move}>
    ${tabs.map(([id, label]) => html`
      <button type="button" role="tab" id=${tabId(id)} aria-selected=${id === chosen}
        aria-controls=${panel} tabindex=${id === chosen ? 0 : -1} onClick=${() => choose(id)}>
        ${label}
      </button>`)}
  </div>`;
}

/** Something bad, beside what it concerns. */
export function Alert({ children }) {
  return html`<p class="alert" role="alert">${children}</p>`;
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

/** A value that follows another after it has been still for a while. */
export function useSettled(value, milliseconds) {
  const [settled, settle] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => settle(value), milliseconds);
    return () => clearTimeout(timer);
  }, [value]);
  return settled;
}
