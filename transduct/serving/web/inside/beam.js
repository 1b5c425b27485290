// The view of the beam: all that the search considered as a tree, from left to right.

import { html, useLayoutEffect, useMemo, useState, useRef } from "../vendor/preact.js";
import { Choice } from "../parts.js";
import { useData } from "./data.js";
import { shown } from "./numbers.js";
import { NumberTable } from "../table.js";
import { label, say } from "./words.js";

const [ACROSS, DOWN, WIDE, HIGH] = [112, 44, 92, 34];
const SIGNS = { kept: "", ended: "■ ", outranked: "✕ ", late: "✕ " };

/** The view; see `views.js` for what all views are given. */
export function Beam({ get, look, change, local }) {
  const [found, trouble] = useData(get, "beam", look.beam && !local ? { beam: look.beam } : {});
  const tree = useMemo(() => found && laidOut(found), [found]);
  return html`
    ${!local && html`
      <div class="controls">
        <${Choice} label=${say("beam.width")} value=${look.beam || found?.beam} onChoose=${(beam) => change({ beam })}
          of=${[1, 2, 3, 4, 5, 6, 8].map((n) => [n, n])} />
      </div>`}
    ${trouble && html`<p role="alert">${trouble}</p>`}
    ${tree && html`
      <p class="hint">${say("beam.how", { beam: found.beam, twice: 2 * found.beam })}</p>
      <${Tree} found=${found} tree=${tree} />
      <${Outputs} found=${found} tree=${tree} />
      <${NumberTable} caption=${say("beam.tree")} columns=${named("step", "place", "token", "after", "score", "fate", "rank")}
        count=${found.nodes.length} depends=${[tree]} row=${(n) => rowOf(found.nodes, tree.steps, n)} />`}
  `;
}

/** The step and the place of each node, the way of the winner, and the children of each. */
function laidOut({ nodes, winner }) {
  const steps = [];
  const children = nodes.map(() => []);
  nodes.forEach(({ parent }, n) => {
    steps.push(parent < 0 ? 0 : steps[parent] + 1);
    if (parent >= 0) children[parent].push(n);
  });
  const best = new Set();
  for (let n = winner; n >= 0; n = nodes[n].parent) best.add(n);
  const levels = [];
  steps.forEach((step, n) => (levels[step] ??= []).push(n));
  return { steps, children, best, levels };
}

function Tree({ found, tree: { steps, children, best, levels } }) {
  const { nodes, beam, winner } = found;
  const [now, point] = useState(winner);
  const root = useRef(null);
  const wanted = useRef(null); // the node that gets the focus once it is drawn
  const [sight, look] = useState([0, 16]); // the steps that are drawn: a long tree has thousands of nodes
  const node = nodes[now] ? now : winner;
  const link = globalThis.d3.linkHorizontal();
  const [x, y] = [(n) => 12 + steps[n] * ACROSS, (n) => 30 + nodes[n].place * DOWN];
  const width = 24 + levels.length * ACROSS;
  const height = 44 + DOWN * Math.max(...levels.map((level) => level.length));
  const seen = (one) => SIGNS[one.fate] + short(label(one.label));
  const go = (to) => {
    if (to === undefined || to < 0) return;
    point(to);
    wanted.current = to;
  };
  useLayoutEffect(() => {
    root.current.querySelector(`[data-node="${wanted.current}"]`)?.focus();
    wanted.current = null;
  }, [node]);
  const scrolled = () => {
    const { scrollLeft, clientWidth } = root.current;
    const first = Math.floor(scrollLeft / ACROSS / 4) * 4 - 4;
    if (first !== sight[0]) look([first, first + Math.ceil(clientWidth / ACROSS) + 12]);
  };
  useLayoutEffect(scrolled, [found]);
  const drawn = (n) => (steps[n] >= sight[0] && steps[n] <= sight[1]) || Math.abs(steps[n] - steps[node]) < 2;
  const key = (event) => {
    const level = levels[steps[node]];
    const to = {
      ArrowLeft: () => nodes[node].parent,
      ArrowRight: () => children[node].find((n) => best.has(n)) ?? children[node][0],
      ArrowUp: () => level[level.indexOf(node) - 1],
      ArrowDown: () => level[level.indexOf(node) + 1],
      End: () => winner,
      Home: () => levels[0][0],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    go(to());
  };
  return html`
    <div class="reel tree" ref=${root} onScroll=${scrolled}>
      <svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="tree"
        aria-label=${say("beam.tree")} onKeyDown=${key}>
        ${levels.map((_, step) => html`
          <text x=${12 + step * ACROSS + WIDE / 2} y="16" class="step" aria-hidden="true">${step + 1}</text>`)}
        <line class="limit" x1="0" x2=${width} y1=${30 + beam * DOWN - 5} y2=${30 + beam * DOWN - 5} />
        ${nodes.map(({ parent, fate }, n) => parent >= 0 && drawn(n) && html`
          <path key=${n} class=${`${fate} ${best.has(n) ? "best" : ""}`}
            d=${link({ source: [x(parent) + WIDE, y(parent) + HIGH / 2], target: [x(n), y(n) + HIGH / 2] })} />`)}
        ${nodes.map((each, n) => drawn(n) && html`
          <g key=${n} role="treeitem" data-node=${n} aria-level=${steps[n] + 1} tabindex=${n === node ? 0 : -1}
            aria-selected=${n === node} aria-label=${`${seen(each)} ${shown(each.score)}. ${told(nodes, n, best)}`}
            class=${`${each.fate} ${best.has(n) ? "best" : ""}`} transform=${`translate(${x(n)} ${y(n)})`}
            onClick=${() => point(n)} onFocus=${() => point(n)} onPointerEnter=${() => point(n)}>
            <rect width=${WIDE} height=${HIGH} rx="8" />
            <text x="8" y="15">${seen(each)}</text>${" "}
            <text x="8" y="28" class="score">${shown(each.score)}</text>
          </g>`)}
      </svg>
    </div>
    <p class="told"><output>${told(nodes, node, best)}</output></p>
    <ul class="signs" aria-hidden="true">
      <li class="best">${say("beam.sign.best")}</li><li class="kept">${say("beam.sign.kept")}</li>
      <li class="ended">■ ${say("beam.sign.ended")}</li><li class="outranked">✕ ${say("beam.sign.dropped")}</li>
    </ul>
  `;
}

const short = (text) => ([...text].length > 10 ? `${[...text].slice(0, 9).join("")}…` : text);

/** What became of a node, and why. */
function told(nodes, n, best) {
  const { score, place, fate, divisor } = nodes[n];
  const values = {
    token: label(nodes[n].label), score: shown(score, 3), place: place + 1,
    divisor: divisor && shown(divisor, 3), rank: divisor && shown(score / divisor, 3),
  };
  const start = say("beam.node", values);
  return `${start} ${say(`beam.${fate}`, values)}${best.has(n) ? ` ${say("beam.best")}` : ""}`;
}

/** The text up to a node. */
function textOf(nodes, n) {
  const parts = [];
  for (let at = n; at >= 0; at = nodes[at].parent) {
    if (!nodes[at].label.special) parts.unshift(label(nodes[at].label));
  }
  return parts.join("").replaceAll("▁", " ").trim();
}

function Outputs({ found: { nodes, winner, alpha, rule }, tree: { steps } }) {
  const ends = nodes.map((_, n) => n).filter((n) => nodes[n].fate === "ended");
  const rank = (n) => nodes[n].score / nodes[n].divisor;
  ends.sort((a, b) => (b === winner) - (a === winner) || rank(b) - rank(a));
  return html`
    <h2>${say("beam.outputs")}</h2>
    <p class="hint">${say(`beam.rule.${rule}`, { alpha: shown(alpha, 1) })}</p>
    <div class="reel" tabindex="0" role="region" aria-label=${say("beam.outputs")}>
      <table class="outputs">
        <thead><tr>${named("text", "length", "score", "divisor", "rank").map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
        <tbody>
          ${ends.map((n) => html`
            <tr key=${n} class=${n === winner ? "best" : ""}>
              <th scope="row" dir="auto">${n === winner ? "★ " : ""}${textOf(nodes, n) || say("beam.empty")}</th>
              <td>${steps[n] + 1}</td><td>${shown(nodes[n].score, 3)}</td>
              <td>${shown(nodes[n].divisor, 3)}</td><td>${shown(rank(n), 3)}</td>
            </tr>`)}
        </tbody>
      </table>
    </div>
  `;
}

const named = (...columns) => columns.map((name) => say(`beam.column.${name}`));

function rowOf(nodes, steps, n) {
  const { parent, place, score, fate, divisor } = nodes[n];
  return [steps[n] + 1, place + 1, label(nodes[n].label), textOf(nodes, parent), shown(score, 3), say(`beam.fate.${fate}`),
    divisor ? shown(score / divisor, 3) : ""];
}
