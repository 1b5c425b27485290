// The views in a file of their own, which `transduct inspect` writes: all numbers are in it.

import { html, render, useState } from "../vendor/preact.js";
import { Views } from "./views.js";

const all = JSON.parse(document.getElementById("inside").textContent);
const get = (view, more = {}) => {
  const found = all.views[more.name ? `${view} ${more.name}` : view];
  return found ? Promise.resolve(found) : Promise.reject(new Error(view));
};

function File() {
  const [tongue, turn] = useState(navigator.language.startsWith("ko") ? "ko" : "en");
  document.documentElement.lang = tongue;
  return html`
    <header class="bar">
      <h1>transduct</h1>
      <span class="space"></span>
      <button class="quiet" lang=${tongue === "en" ? "ko" : "en"}
        onClick=${() => turn(tongue === "en" ? "ko" : "en")}>${tongue === "en" ? "한국어" : "English"}</button>
    </header>
    <main><${Views} get=${get} model=${all.model} text=${all.text} tongue=${tongue} local /></main>
  `;
}

render(html`<${File} />`, document.body);
