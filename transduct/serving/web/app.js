// The page: finds out what the server has, and shows a tab for each use of it.

import { html, render, useEffect } from "./vendor/preact.js";
import { ask } from "./server.js";
import { change, state, useApp } from "./store.js";
import { say } from "./words.js";
import { TextPage } from "./translate/text.js";

function App() {
  const { tongue, health } = useApp();
  useEffect(() => {
    document.documentElement.lang = tongue;
  }, [tongue]);
  useEffect(() => void begin(), []);
  return html`
    <header class="bar">
      <h1>transduct</h1>
      <span class="space"></span>
      <button class="quiet" lang=${tongue === "en" ? "ko" : "en"}
        onClick=${() => change({ tongue: tongue === "en" ? "ko" : "en" })}>
        ${say("app.tongue")}
      </button>
    </header>
    <main>${health ? html`<${TextPage} />` : html`<p role="status">${say("app.loading")}</p>`}</main>
  `;
}

async function begin() {
  const [health, languages] = await Promise.all([ask("health"), ask("languages")]);
  change({ health, languages });
  document.title = `${health.model} - transduct`;
}

render(html`<${App} />`, document.body);
