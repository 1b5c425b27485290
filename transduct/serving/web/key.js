// The key that a server asks for.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { Alert } from "./parts.js";
import { change, useApp } from "./store.js";
import { say } from "./words.js";

export function Key() {
  const { health, key, locked } = useApp();
  const [open, show] = useState(false);
  const [typed, type] = useState(key);
  const input = useRef(null);
  useEffect(() => void (locked && show(true)), [locked]);
  useEffect(() => input.current?.select(), [open]); // what is typed replaces a wrong key
  if (!health?.key) return null;
  const enter = (event) => {
    event.preventDefault();
    show(false);
    change({ key: typed, locked: false });
  };
  return html`
    <button type="button" class="quiet" aria-expanded=${open} onClick=${() => show(!open)}>${say("app.key")}</button>
    ${open && html`<form class="key" onSubmit=${enter}>
      ${locked && html`<${Alert}>${say(key ? "trouble.wrongKey" : "trouble.key")}<//>`}
      <label>${say("key.label")} <input ref=${input} type="password" autocomplete="off" value=${typed}
        onInput=${(event) => type(event.target.value)} /></label>
      <button type="submit" class="chip">${say("key.use")}</button>
    </form>`}
  `;
}
