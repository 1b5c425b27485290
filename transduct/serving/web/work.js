// A question to a model and what became of it.

import { html, useEffect, useState } from "./vendor/preact.js";
import { Alert } from "./parts.js";
import { useApp } from "./store.js";
import { say } from "./words.js";

const LATER = 1000; // milliseconds until a server that did not answer is asked again

/**
 * The answer to a question, asked anew when what it depends on changes.
 * @param {((signal: AbortSignal) => Promise<any>)|null} question  null to ask nothing
 * @returns {{answer: any, trouble: Error|null, busy: boolean, stop: () => void}}
 */
export function useAnswer(question, depends) {
  const { key } = useApp();
  const [tries, again] = useState(0);
  const [found, show] = useState({ answer: null, trouble: null, busy: false, stop() {} });
  useEffect(() => {
    const control = new AbortController();
    const stop = () => {
      control.abort();
      show((before) => ({ ...before, busy: false }));
    };
    if (!question) return show({ answer: null, trouble: null, busy: false, stop });
    show((before) => ({ ...before, busy: true, stop }));
    let timer;
    question(control.signal).then(
      (answer) => control.signal.aborted || show({ answer, trouble: null, busy: false, stop }),
      (trouble) => {
        if (control.signal.aborted) return;
        show({ answer: null, trouble, busy: false, stop });
        if (trouble.passes) timer = setTimeout(() => again(tries + 1), LATER);
      },
    );
    return () => {
      clearTimeout(timer);
      control.abort();
    };
  }, [...depends, key, tries]);
  return found;
}

/** What is wrong with a question, and a button to stop it. */
export function Progress({ trouble, busy, stop }) {
  return html`
    ${trouble && html`<${Alert} trouble=${trouble} />`}
    ${busy && html`<div class="row"><span class="note" role="status">${say("model.working")}</span>
      <button type="button" class="stop" onClick=${stop}>${say("text.stop")}</button></div>`}
  `;
}

/** The address of a request with values: `v1/predict?model=..`. */
export function address(path, values) {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== "");
  return `${path}?${new URLSearchParams(given)}`;
}
