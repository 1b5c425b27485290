// The numbers of a view as a table, made when it is opened, a few cells at a time.

import { html, useLayoutEffect, useRef, useState } from "./vendor/preact.js";
import { say } from "./words.js";

const CELLS = 300; // made at once, so that the page never stops
const MOST = 2500; // cells at a time: when one changes, all of them are painted again
const LARGE = 2000; // cells from which on all columns are equally wide: then new rows move no others

/**
 * @param {object} given
 * @param {string} given.caption
 * @param {string[]} given.columns  the names of the columns, that of the rows' names first
 * @param {number} given.count  of rows
 * @param {(row: number) => (string|number)[]} given.row  its cells, its name first
 * @param {any[]} given.depends  what the cells depend on, as of an effect
 */
export function NumberTable({ caption, columns, count, row, depends }) {
  const [open, toggle] = useState(false);
  const [first, turn] = useState(0);
  const body = useRef(null);
  const rows = Math.max(1, Math.floor(MOST / columns.length));
  const from = first < count ? first : 0;
  const last = Math.min(count, from + rows);
  useLayoutEffect(() => { // caption and rows change together
    if (!open) return undefined;
    let [done, waiting] = [from, 0];
    body.current.replaceChildren();
    const more = () => {
      const until = Math.min(last, done + Math.max(1, Math.floor(CELLS / columns.length)));
      const lines = [];
      for (; done < until; done++) lines.push(lineOf(row(done)));
      body.current.append(...lines);
      if (done < last) waiting = requestAnimationFrame(more);
    };
    more();
    return () => cancelAnimationFrame(waiting);
  }, [open, caption, count, from, ...depends]);
  return html`
    <details class="figures" onToggle=${(event) => toggle(event.currentTarget.open)}>
      <summary>${say("table.open")}</summary>
      ${open && count > rows && html`
        <p class="pages">
          <button type="button" aria-label=${say("table.before")} disabled=${from === 0} onClick=${() => turn(from - rows)}>‹</button>
          <output>${say("table.rows", { first: from + 1, last, count })}</output>
          <button type="button" aria-label=${say("table.next")} disabled=${last === count} onClick=${() => turn(last)}>›</button>
        </p>`}
      ${open && html`
        <div class="reel" tabindex="0" role="region" aria-label=${caption}>
          <table class=${count * columns.length > LARGE ? "even" : ""}>
            <caption>${caption}</caption>
            <thead><tr>${columns.map((name) => html`<th scope="col" title=${name}>${name}</th>`)}</tr></thead>
            <tbody ref=${body}></tbody>
          </table>
        </div>`}
    </details>
  `;
}

function lineOf([name, ...cells]) {
  const line = document.createElement("tr");
  const head = document.createElement("th");
  head.scope = "row";
  head.textContent = name;
  line.append(head);
  for (const cell of cells) line.insertCell().textContent = cell;
  return line;
}
