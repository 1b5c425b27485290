// The page: finds out what the server has, and shows a tab for each use of it.

import { html, render, useEffect, useState } from "./vendor/preact.js";
import { Key } from "./key.js";
import { ModelPage } from "./models/pages.js";
import { Alert, tabId, Tabs, Tongue } from "./parts.js";
import { ask } from "./server.js";
import { change, state, useApp } from "./store.js";
import { FilesPage } from "./translate/files.js";
import { take } from "./translate/languages.js";
import { TextPage } from "./translate/text.js";
import { say } from "./words.js";

const AGAIN = 1000; // milliseconds until the server is asked again whether it is there

function App() {
  const { health, tab, keep } = useApp();
  const [dropped, drop] = useState([]);
  const [trouble, tell] = useState(null);
  useEffect(() => void begin(tell), []);
  useEffect(() => listen(drop), []);
  const tabs = tabsOf(health);
  const open = tabs.some(([id]) => id === tab) ? tab : tabs[0]?.[0];
  const model = open !== "text" && open !== "files" && health?.models.find(({ name }) => name === open);
  const notice = health ? { warming: "app.warming" }[health.status] : "app.loading";
  return html`
    <header class="bar">
      <h1>transduct</h1>
      ${tabs.length > 1 && html`<${Tabs} name=${say("app.tabs")} tabs=${tabs} chosen=${open} panel="page"
        choose=${(id) => change({ tab: id })} />`}
      <span class="space"></span>
      <${Tongue} />
      <${Key} />
    </header>
    <main>
      ${trouble && html`<${Alert} trouble=${trouble} />`}
      <p class="note" role="status">${!trouble && notice ? say(notice) : ""}</p>
      ${health?.status === "broken" && html`<${Alert}>${say("trouble.broken")}<//>`}
      ${open && html`<div class="page" id="page" ...${tabs.length > 1 && { role: "tabpanel", "aria-labelledby": tabId(open) }}>
        ${open === "text" && html`<${TextPage} />`}
        ${model && html`<${ModelPage} key=${model.name} model=${model} given=${dropped} taken=${() => drop([])} />`}
        ${open === "files" && html`<${FilesPage} given=${dropped} taken=${() => drop([])} />`}
      </div>`}
    </main>
    <footer class="row note">
      <label class="inline"><input type="checkbox" checked=${keep} onChange=${(event) => change({ keep: event.target.checked })} />
        ${say("app.keep")}</label>
      <span class="space"></span>
      ${health && html`<span>transduct ${health.version}</span>`}
    </footer>
  `;
}

/** Text and files for models that translate, and a tab for each other model. */
function tabsOf(health) {
  if (!health) return [];
  const translates = health.models.some(({ verbs }) => verbs.includes("translate"));
  const others = health.models.filter(({ verbs }) => !verbs.includes("translate"));
  const both = [["text", say("app.text")], ["files", say("app.files")]];
  return [...(translates ? both : []), ...others.map(({ name }) => [name, name])];
}

/** Ask the server what it has, until it answers. */
async function begin(tell) {
  try {
    const [health, languages] = await Promise.all([ask("web/about"), ask("languages")]);
    const first = !state().health;
    change({ health, languages });
    tell(null);
    if (first) {
      document.title = `${health.model} - transduct`;
      readAddress();
      addEventListener("hashchange", readAddress);
    }
    if (health.status === "warming") setTimeout(() => begin(tell), AGAIN);
  } catch (error) {
    tell(error);
    setTimeout(() => begin(tell), AGAIN);
  }
}

/** The languages in the address, and the text if somebody copied it there: #en/ko/text. */
function readAddress() {
  const [source, target, text] = location.hash.slice(1).split("/");
  take(source || state().source, target || state().target);
  if (text !== undefined) change({ text: decodeURIComponent(text) });
}

/** Files that are dropped or pasted anywhere go to the page of files. */
function listen(drop) {
  const takes = (event, { files } = event.dataTransfer ?? event.clipboardData) => {
    if (!files?.length) return;
    event.preventDefault(); // or the browser would leave the page for the file
    if (state().tab === "text") change({ tab: "files" }); // or the first model's, where none translates
    drop([...files]);
  };
  const over = (event) => event.dataTransfer.types.includes("Files") && event.preventDefault();
  document.addEventListener("dragover", over);
  document.addEventListener("drop", takes);
  document.addEventListener("paste", takes);
}

render(html`<${App} />`, document.body);
