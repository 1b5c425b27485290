// The views in a file of their own, which `transduct inspect` writes: all numbers are in it.

import { html, render } from "../vendor/preact.js";
import { Tongue } from "../parts.js";
import { useApp } from "../store.js";
import { Views } from "./views.js";

const all = JSON.parse(document.getElementById("inside").textContent);
const get = (view, more = {}) => {
  const found = all.views[more.name ? `${view} ${more.name}` : view];
  return found ? Promise.resolve(found) : Promise.reject(new Error(view));
};

function File() {
  useApp(); // all is drawn again in another language
  return html`
    <header class="bar"><h1>transduct</h1><span class="space"></span><${Tongue} /></header>
    <main><${Views} get=${get} model=${all.model} text=${all.text} local /></main>
  `;
}

render(html`<${File} />`, document.body);
