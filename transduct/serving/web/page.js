const $ = id => document.getElementById(id);
let model = {reads: "text"}, asking = null, shown = null, held = null;

const make = (tag, text, ...children) => {
  const made = document.createElement(tag);
  made.textContent = text;
  made.append(...children);
  return made;
};

const said = (text, ...children) => Object.assign(make("div", text, ...children), {className: "said", dir: "auto", lang: ""});

const hold = blob => {
  URL.revokeObjectURL(held);
  return held = URL.createObjectURL(blob);
};

async function call(path, options = {}) {
  const lost = message => () => { throw options.signal?.aborted ? Error("stopped") : Error(message); };
  const response = await fetch(path, options).catch(lost("the server does not answer"));
  const damaged = lost(`the server's answer cannot be read (${response.status} ${response.statusText})`);
  if (response.headers.get("Content-Type") === "image/png") return {picture: await response.blob().catch(damaged)};
  const answer = await response.json().catch(damaged);
  if (response.status === 401) {
    $("key").hidden = false;
    $("key").focus();
    throw Error($("key").value ? "no such key" : "this server asks for a key");
  }
  if (answer?.error || !(response.ok || answer?.status)) throw Error(answer?.error || `${response.status} ${response.statusText}`);
  return answer;
}

function post(path, body, type = "application/json") {
  const headers = {"Content-Type": type};
  if ($("key").value) headers.Authorization = "Bearer " + $("key").value;
  return call(path, {method: "POST", headers, body, signal: asking?.signal});
}

async function ask() {
  const lines = $("text").value.replace(/\n+$/, "").split("\n");
  if (model.reads !== "text") {
    const file = $("file").files[0];
    if (!file) throw Error("choose a file first");
    return {...await post("predict", file, "application/octet-stream"), file};
  }
  if (!model.translates) return post("predict", JSON.stringify({inputs: lines}));
  const body = {texts: lines, n_best: Number($("best").value) || 1, sentences: $("sentences").checked};
  if ($("beam").value) body.beam = Number($("beam").value);
  else if (body.n_best > 1) body.beam = Math.max(5, body.n_best);
  const {translations} = await post("translate", JSON.stringify(body));
  return {translations, lines};
}

function show({picture, outputs, file, translations, lines}) {
  const answers = [];
  if (picture) {
    const image = Object.assign(make("img", ""), {alt: $("text").value || "the model's answer", src: hold(picture)});
    answers.push(make("li", "", Object.assign(make("a", "", image), {href: held, download: "answer.png", title: "save"})));
  }
  for (const output of outputs || []) {
    const found = Array.isArray(output) && output.map(({label, score, box}) => `${label} ${score.toFixed(2)} [${box.join(" ")}]`);
    answers.push(make("li", "", ...(file ? [given(file, found ? output : [])] : []), said(found ? found.join("\n") || "nothing found" : output)));
  }
  (translations || []).forEach((translation, number) => {
    answers.push(make("li", "", ...translation.alternatives.map(({text, score}) => {
      const one = Object.assign(make("button", score.toFixed(2)), {type: "button", title: "score; shows where the model looked"});
      one.setAttribute("aria-expanded", false);
      one.onclick = () => {
        const again = shown?.one === one;
        close();
        if (!again) look({one, text: lines[number], target: text}).catch(fail);
      };
      return said(text, Object.assign(make("small", "", one), {dir: "ltr"}));
    })));
  });
  $("answers").replaceChildren(...answers);
}

function given(file, found) {
  const media = Object.assign(make(model.reads === "picture" ? "img" : "audio", ""), {alt: file.name, controls: true, src: hold(file)});
  const frame = Object.assign(make("div", "", media), {className: "given"});
  media.onerror = () => frame.remove();
  media.onload = () => frame.append(...found.map(({label, box: [left, top, right, bottom]}) => {
    const part = (length, whole) => 100 * length / whole + "%";
    const {naturalWidth: width, naturalHeight: height} = media, each = make("span", label);
    Object.assign(each.style, {left: part(left, width), top: part(top, height), width: part(right - left, width), height: part(bottom - top, height)});
    return each;
  }));
  return frame;
}

async function look(asked) {
  const {one, text, target, name} = shown = asked;
  one.setAttribute("aria-expanded", true);
  $("error").textContent = "";
  const found = await post("attention", JSON.stringify({text, target, ...(name && {name})})).catch(error => {
    if (asked !== shown) return;
    close();
    throw error;
  });
  if (asked !== shown) return;
  $("name").replaceChildren(make("option", "alignment"), ...found.names.map(each => make("option", each)));
  $("name").value = name || "alignment";
  const mean = heads => heads[0].map((row, i) => row.map((_, j) => heads.reduce((sum, head) => sum + head[i][j], 0) / heads.length));
  draw(name ? {rows: found.rows, columns: found.columns, weights: mean(found.heads)} : found.alignment);
  if ($("looked").hidden) one.closest("div").after($("looked"));  // moving it would take the focus from its menu
  $("looked").hidden = false;
}

function close() {
  shown?.one.setAttribute("aria-expanded", false);
  shown = null;
  $("looked").hidden = true;
  $("answers").after($("looked"));
}

function draw({rows, columns, weights}) {
  const title = (text, scope) => Object.assign(make("th", text), {scope});
  const head = make("tr", "", make("td", ""), ...columns.map(column => title(column, "col")));
  const lines = weights.map((row, i) => make("tr", "", title(rows[i], "row"), ...row.map((weight, j) => {
    const cell = make("td", "");
    cell.style.setProperty("--weight", weight);
    cell.title = `${rows[i]} < ${columns[j]}: ${weight.toFixed(3)}`;
    return cell;
  })));
  document.querySelector("table").replaceChildren(make("thead", "", head), make("tbody", "", ...lines));
}

const fail = error => {
  $("error").textContent = error.message;
  $("error").scrollIntoView({block: "nearest"});
  $("status").textContent = "";
};

document.querySelector("form").onsubmit = async event => {
  event.preventDefault();
  if (asking) return;
  asking = new AbortController();
  $("error").textContent = "";
  close();
  $("answers").replaceChildren();
  $("status").textContent = "...";
  $("stop").hidden = false;
  const began = performance.now();
  try {
    show(await ask());
    $("status").textContent = ((performance.now() - began) / 1000).toFixed(2) + " s";
  } catch (error) { fail(error); }
  asking = null;
  $("stop").hidden = true;
};
$("stop").onclick = () => { asking.abort(); $("go").focus(); };
$("name").onchange = () => look({...shown, name: $("name").value === "alignment" ? null : $("name").value}).catch(fail);
$("text").onkeydown = event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) document.querySelector("form").requestSubmit(); };

const take = ({files}) => { if (files.length && model.reads !== "text") $("file").files = files; };
document.ondragover = event => { if (event.dataTransfer.types.includes("Files")) event.preventDefault(); };
document.ondrop = event => {
  if (event.dataTransfer.files.length) event.preventDefault();  // or the browser would leave the page for the file
  take(event.dataTransfer);
};
document.onpaste = event => take(event.clipboardData);

(async () => {
  model = await call("health");
  $("about").textContent = model.model;
  document.title = model.model + " - transduct";
  $("text").hidden = model.reads !== "text";
  $("text").required = model.translates;
  if (model.paints) $("text").placeholder = "One text";
  $("upload").hidden = model.reads === "text";
  $("file").accept = model.reads === "picture" ? "image/*" : "audio/*";
  document.querySelectorAll(".search").forEach(each => each.hidden = !model.translates);
  if (model.status === "broken") throw Error("the server is broken; its log says more");
})().catch(fail);
