// Documents in, documents out.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { Icon, IconButton, Save } from "../parts.js";
import { ask, send, Trouble } from "../server.js";
import { state, useApp } from "../store.js";
import { reason, say } from "../words.js";
import { Languages, swappable, take } from "./languages.js";

let next = 0;

/** @param {{given: File[], taken: () => void}} props  files that were dropped on another page */
export function FilesPage({ given, taken }) {
  const { source, target } = useApp();
  const [jobs, set] = useState([]);
  const [formats, know] = useState([]);
  const input = useRef(null);
  const update = (id, some) => set((all) => all.map((job) => (job.id === id ? { ...job, ...some } : job)));
  const add = (files) => {
    const added = [...files].map((file) => ({ id: next++, file, sent: 0, control: new AbortController() }));
    set((all) => [...added, ...all]);
    for (const job of added) void translated(job, (some) => update(job.id, some));
  };
  useEffect(() => {
    ask("frontend/settings").then(({ supportedFilesFormat: known }) => know(known)).catch(() => {});
  }, []);
  useEffect(() => {
    if (!given.length) return;
    taken();
    add(given);
  }, [given]);
  const remove = (job) => {
    job.control.abort();
    if (job.url) URL.revokeObjectURL(job.url);
    set((all) => all.filter(({ id }) => id !== job.id));
  };
  return html`
    <${Languages} detected="" swap=${() => swappable(source, target, "") && take(target, source)} />
    <section class="card drop" aria-label=${say("app.files")}>
      <${Icon} name="upload" />
      <p>${say("files.hint")}</p>
      <button type="button" class="chip" onClick=${() => input.current.click()}>${say("files.choose")}</button>
      <input ref=${input} type="file" multiple hidden accept=${formats.join(",")} aria-label=${say("files.choose")}
        onChange=${(event) => {
          add(event.target.files);
          event.target.value = "";
        }} />
      ${formats.length > 0 && html`<p class="note">${formats.map((each) => each.replace(/^\./, "")).join(", ")}</p>`}
    </section>
    <ul class="jobs" aria-label=${say("files.list")}>
      ${jobs.map((job) => html`<${Job} key=${job.id} job=${job} remove=${() => remove(job)} />`)}
    </ul>
    <p class="for-readers" role="status">${jobs.filter(({ url }) => url).map(({ name }) => say("files.done", { name }))[0] ?? ""}</p>
  `;
}

function Job({ job: { file, sent, url, name, error }, remove }) {
  const doing = say(sent < 1 ? "files.sending" : "files.translating", { name: file.name });
  return html`<li class="card job">
    <span class="said">${file.name}</span>
    ${url && html`<${Save} href=${url} name=${name} text=${say("files.download", { name })} />`}
    ${error && html`<span class="alert" role="alert">${error}</span>`}
    ${!url && !error && html`<span class="note">${doing}</span>
      <progress aria-label=${doing} value=${sent < 1 ? sent : undefined} max="1"></progress>`}
    <span class="space"></span>
    <${IconButton} icon="clear" name=${say("files.remove", { name: file.name })} onClick=${remove} />
  </li>`;
}

/** Send a file, and fetch its translation. */
async function translated({ file, control }, update) {
  try {
    const { translatedFileUrl } = await upload(file, control.signal, (sent) => update({ sent }));
    const { pathname, search } = new URL(translatedFileUrl, location.href);
    const response = await send(pathname + search, undefined, { signal: control.signal });
    update({ url: URL.createObjectURL(await response.blob()), name: translatedName(file.name) });
  } catch (error) {
    if (error.kind !== "stopped") update({ error: reason(error) });
  }
}

/** letter.docx -> letter.de.docx */
const translatedName = (name) => name.replace(/(\.[^.]*)?$/, (end) => `.${state().target || "out"}${end}`);

/** Send a file as a form: `fetch` cannot say how much of it has been sent. */
function upload(file, signal, progress) {
  const { source, target, key } = state();
  const form = new FormData();
  form.append("source", source);
  form.append("target", target || "und");
  form.append("file", file);
  const request = new XMLHttpRequest();
  return new Promise((resolve, reject) => {
    request.upload.onprogress = ({ loaded, total }) => progress(loaded / total);
    request.upload.onload = () => progress(1);
    request.onerror = () => reject(new Trouble("away"));
    request.onabort = () => reject(new Trouble("stopped"));
    request.onload = () => {
      const { error, ...answer } = request.response ?? {};
      if (request.status === 200) resolve(answer);
      else reject(new Trouble("refused", error ?? `${request.status} ${request.statusText}`));
    };
    signal.addEventListener("abort", () => request.abort());
    request.responseType = "json";
    request.open("POST", "translate_file");
    if (key) request.setRequestHeader("Authorization", `Bearer ${key}`);
    request.send(form);
  });
}
