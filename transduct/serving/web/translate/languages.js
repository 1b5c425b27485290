// From which language into which, and by which model.

import { html, useLayoutEffect } from "../vendor/preact.js";
import { IconButton } from "../parts.js";
import { change, state, useApp } from "../store.js";
import { nameOf, say } from "../words.js";

const RECENT = 4;

/** Whether there is more than one pair to choose from. */
export const chooses = () => state().languages.some(({ code }) => code !== "und");

/** The languages that a source can be translated into; of "auto" those of all. */
export function targetsOf(source) {
  const { languages } = state();
  const able = source === "auto" ? languages : languages.filter(({ code }) => code === source);
  return [...new Set(able.flatMap(({ targets }) => targets))];
}

/** Take languages that the server has; what it lacks becomes what is nearest. */
export function take(source, target) {
  const { languages, recent } = state();
  if (!chooses()) return change({ source: "auto", target: "" });
  const codes = languages.map(({ code }) => code);
  const from = codes.includes(source) ? source : codes.length === 1 ? codes[0] : "auto";
  const targets = targetsOf(from).filter((code) => code !== from);
  const into = targets.includes(target) ? target : targets.find((code) => recent.includes(code));
  const to = into ?? targets[0] ?? "";
  const used = [from, to].filter((code) => code && code !== "auto");
  const latest = [...new Set([...used, ...recent])].slice(0, 2 * RECENT);
  change({ source: from, target: to, recent: latest });
}

/** @param {{detected: string, swap: () => void}} given */
export function Languages({ detected, swap }) {
  const { source, target, languages, model, health } = useApp();
  useLayoutEffect(() => {
    if (chooses()) history.replaceState(null, "", `#${source}/${target}`);
  }, [source, target]);
  const translators = health.models.filter(({ verbs }) => verbs.includes("translate"));
  const codes = languages.map(({ code }) => code);
  const auto = detected ? say("text.detected", { language: nameOf(detected) }) : say("text.detect");
  return html`<div class="choices">
    ${chooses() && html`
      <${Menu} name=${say("text.from")} value=${source} codes=${codes}
        first=${codes.length > 1 && auto} choose=${(code) => take(code, target)} />
      <${IconButton} icon="swap" name=${say("text.swap")} onClick=${swap}
        aria-disabled=${!swappable(source, target, detected)} />
      <${Menu} name=${say("text.to")} value=${target} choose=${(code) => take(source, code)}
        codes=${targetsOf(source).filter((code) => code !== source)} />`}
    <span class="space"></span>
    ${translators.length > 1 && html`<label class="inline">${say("text.model")}
      <select value=${model} onChange=${(event) => change({ model: event.target.value })}>
        <option value="">${say("text.anyModel")}</option>
        ${translators.map(({ name }) => html`<option value=${name}>${name}</option>`)}
      </select></label>`}
  </div>`;
}

/** Whether the server translates back. */
export function swappable(source, target, detected) {
  const from = source === "auto" ? detected : source;
  return !!from && targetsOf(target).includes(from);
}

/** A menu of languages; those last used come first. */
function Menu({ name, value, codes, first, choose }) {
  const { recent } = useApp();
  const latest = codes.length > RECENT ? recent.filter((code) => codes.includes(code)) : [];
  const sorted = [...codes].sort((a, b) => nameOf(a).localeCompare(nameOf(b)));
  const option = (code) => html`<option value=${code}>${nameOf(code)}</option>`;
  return html`<select class="language" aria-label=${name} value=${value}
    onChange=${(event) => choose(event.target.value)}>
    ${first && html`<option value="auto">${first}</option>`}
    ${latest.length > 0
      ? html`<optgroup label=${say("text.recent")}>${latest.slice(0, RECENT).map(option)}</optgroup>
          <optgroup label=${say("text.all")}>
            ${sorted.filter((code) => !latest.slice(0, RECENT).includes(code)).map(option)}
          </optgroup>`
      : sorted.map(option)}
  </select>`;
}
