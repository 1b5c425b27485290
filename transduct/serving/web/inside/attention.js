// The view of attention: every layer and head, as lines and as matrices.

import { html, useMemo, useRef } from "../vendor/preact.js";
import { Choice } from "../parts.js";
import { colourOf, useDark } from "./colours.js";
import { Lines } from "./lines.js";
import { Large, Small } from "./matrix.js";
import { between, mean, shown, unpacked } from "./numbers.js";
import { useData } from "./data.js";
import { state } from "../store.js";
import { NumberTable } from "../table.js";
import { label, say } from "./words.js";

/** The kinds of maps that a model has, each with its names by layer. */
export function kindsOf(maps) {
  const kinds = {};
  for (const { name, heads } of maps) {
    const [side, , of] = name.split(".");
    const kind = of === "cross" ? "cross" : side;
    (kinds[kind] ??= []).push({ name, heads });
  }
  if (kinds.cross) kinds.alignment = [{ ...kinds.cross.at(-1), heads: 1 }];
  return kinds;
}

/** The pieces or words along the rows and columns of a kind of map. */
export function sidesOf(sentence, kind, by) {
  const { source, read, written } = sentence.sides;
  if (kind === "encoder") return [source[by], source[by]];
  if (kind === "decoder") return [written[by], read[by]];
  const both = [written[by], source[by]];
  return kind === "alignment" ? both.map((side) => side.filter((one, i) => !ends(one, side, i))) : both;
}

const ends = ({ special }, side, i) => special === "</s>" && i === side.length - 1;

/** The view; see `views.js` for what all views are given. */
export function Attention({ sentence, get, look, change, step, onStep }) {
  const { tongue } = state();
  const kinds = useMemo(() => kindsOf(sentence.maps), [sentence]);
  const kind = kinds[look.kind] ? look.kind : Object.keys(kinds)[0];
  const layers = kinds[kind];
  const layer = Math.min(look.layer, layers.length - 1);
  const [fresh, trouble] = useData(get, "attention", { name: layers[layer].name });
  const drawn = useRef({}); // what was there before stays until what is asked for comes
  if (fresh) drawn.current = { found: fresh, kind, layer };
  const { found, kind: of } = drawn.current;
  const [rows, columns] = useMemo(() => sidesOf(sentence, of ?? kind, look.by), [sentence, of, look.by]);
  const maps = useMemo(
    () => found && between(unpacked(found), found.shape, rows, columns), [found, rows, columns]);
  const names = useMemo(() => [rows.map(label), columns.map(label)], [rows, columns, tongue]);
  const alone = of === "alignment" || maps?.length === 1;
  const all = useMemo(() => maps && { ...maps, mean: mean(maps) }, [maps]);
  const lit = useMemo(() => {
    if (!maps) return [];
    const heads = alone ? ["mean"] : look.heads.filter((head) => all[head]);
    return (heads.length ? heads : ["mean"]).map((head) => ({ head, weights: all[head] }));
  }, [maps, look.heads, alone]);
  const large = !alone && maps?.[look.large] ? look.large : "mean";
  const row = Math.max(0, rows.findIndex(({ first, last }) => first <= step && step <= last));
  const nameOf = (head) => (head === "mean" ? say(alone && maps?.length === 1 ? "head.only" : "mean")
    : say("head", { head: head + 1 }));
  return html`
    <div class="controls">
      <${Choice} label=${say("attention.kind")} value=${kind} onChoose=${(kind) => change({ kind, layer: 99 })}
        of=${Object.keys(kinds).map((each) => [each, say(`attention.${each}`)])} />
      ${kind !== "alignment" && html`
        <${Choice} label=${say("layer")} value=${layer} onChoose=${(layer) => change({ layer })}
          of=${layers.map((_, i) => [i, i + 1])} />`}
      <${Choice} label=${say("labels")} value=${look.by} onChoose=${(by) => change({ by })}
        of=${[["words", say("labels.words")], ["pieces", say("labels.pieces")]]} />
    </div>
    <p class="hint">${say(`attention.${kind}.how`, { layer: layers.length, count: maps?.length ?? "" })}</p>
    ${trouble && html`<p role="alert">${trouble}</p>`}
    ${maps && html`
      ${!alone && html`<${Heads} count=${maps.length} lit=${look.heads} onChange=${(heads) => change({ heads })} />`}
      <div class="look">
        <${Lines} rows=${names[0]} columns=${names[1]} heads=${lit} row=${row} label=${say("attention.rows")}
          onRow=${(r) => onStep(rows[r].first)} />
        <div class="matrices">
          <${Large} weights=${all[large]} rows=${names[0]} columns=${names[1]} head=${large} row=${row}
            name=${nameOf(large)} onRow=${(r) => onStep(rows[r].first)} />
          ${!alone && html`
            <div class="smalls" role="group" aria-label=${say("attention.squares")}>
              ${[...maps.keys(), "mean"].map((head) => html`
                <${Small} key=${head} head=${head} weights=${all[head]} rows=${rows.length}
                  columns=${columns.length} pressed=${large === head} name=${nameOf(head)}
                  onPress=${() => change({ large: head })} />`)}
            </div>`}
        </div>
      </div>
      <${NumberTable} caption=${`${say(`attention.${of}`)}, ${say("layer")} ${drawn.current.layer + 1}, ${nameOf(large)}`}
        columns=${[say("attention.word"), ...names[1]]} count=${rows.length} depends=${[names, all[large]]}
        row=${(r) => [names[0][r], ...columns.map((_, c) => shown(all[large][r * columns.length + c], 3))]} />`}
  `;
}

/** Which heads are drawn as lines: any number, and their mean. */
function Heads({ count, lit, onChange }) {
  const dark = useDark();
  const heads = [...Array(count).keys()];
  const turn = (head) => onChange(lit.includes(head) ? lit.filter((each) => each !== head) : [...lit, head]);
  const every = heads.every((head) => lit.includes(head));
  return html`
    <div class="choice heads" role="group" aria-label=${say("heads")}>
      <span class="choice-name" aria-hidden="true">${say("heads")}</span>
      ${[...heads, "mean"].map((head) => html`
        <button type="button" key=${head} aria-pressed=${lit.includes(head)} onClick=${() => turn(head)}
          aria-label=${head === "mean" ? say("mean") : say("head", { head: head + 1 })}
          style=${{ "--head": colourOf(head, dark) }}>${head === "mean" ? say("mean") : head + 1}</button>`)}
      <button type="button" class="plain" onClick=${() => onChange(every ? ["mean"] : heads)}>
        ${say(every ? "heads.none" : "heads.all")}</button>
    </div>
  `;
}
