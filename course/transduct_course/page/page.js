"use strict";
// The sliders: each part reads its controls and draws anew.

const COLOURS = ["var(--blue)", "var(--orange)", "var(--green)", "var(--pink)"];
const tokenizer = JSON.parse(document.getElementById("tokenizer").textContent);
const bytes = Uint8Array.from(atob(document.getElementById("weights").textContent), (c) => c.charCodeAt(0));
const translator = new Translator(bytes.buffer, tokenizer);
const say = (english, korean) => (document.documentElement.lang === "ko" ? korean : english);
const shown = (x) => (Math.abs(x) >= 1000 ? Math.round(x).toLocaleString("en") : Number(x.toPrecision(3)).toString());
const percent = (x) => `${(100 * x).toFixed(x < 0.1 ? 1 : 0)}%`;

/** An SVG element; a text is made of its last argument. */
function draw(parent, tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function picture(place, width, height, label) {
  return draw(place, "svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label});
}

function tiles(place, found) {
  const box = document.createElement("div");
  box.className = "tiles";
  for (const [name, label, value] of found) {
    const tile = document.createElement("div"), number = document.createElement("b");
    tile.className = "tile";
    number.dataset.value = name;
    number.textContent = typeof value === "number" ? shown(value) : value;
    tile.append(number, label);
    box.append(tile);
  }
  place.append(box);
}

function caption(place, text) {
  const line = document.createElement("p");
  line.className = "caption";
  line.textContent = text;
  place.append(line);
}

/** A part of the page: its controls by name, the numbers beside them, and what draws it. */
function part(id, show, render) {
  const section = document.getElementById(id), place = section.querySelector(".picture");
  const controls = Object.fromEntries(
    [...section.querySelectorAll("input, select, button")].map((one) => [one.name, one]));
  const again = () => {
    const values = Object.fromEntries(Object.entries(controls).map(([name, one]) =>
      [name, one.type === "checkbox" ? one.checked : one.type === "range" ? Number(one.value) : one.value]));
    for (const [name, one] of Object.entries(controls)) {
      const output = one.closest("label")?.querySelector("output");
      if (output) output.textContent = show[name] ? shown(show[name](values[name])) : values[name];
      if (show[name]) values[name] = show[name](values[name]);
    }
    place.replaceChildren();
    render(place, values, again);
  };
  section.addEventListener("input", again);
  controls.again?.addEventListener("click", () => { seed++; again(); });
  return again;
}

const twice = (v) => 2 ** v;

// 1. Thinking Machines: two scores, step by step.
const byHand = part("hand", {temperature: twice}, (place, {first, second, divide, temperature}) => {
  const scores = [first, second], divided = scores.map((s) => (divide ? s / 8 : s) / temperature);
  const weights = softmax(divided), svg = picture(place, 700, 250, say("two scores become weights", "두 점수가 가중치가 된다"));
  const heads = [say("word", "단어"), say("score", "점수"), say("divided", "나눈 값"), say("weight", "가중치"), say("value", "밸류")];
  const at = [0, 140, 250, 360, 590];
  heads.forEach((head, i) => draw(svg, "text", {x: at[i], y: 18, class: "soft"}, head));
  ["Thinking", "Machines"].forEach((word, i) => {
    const y = 60 + 58 * i;
    draw(svg, "line", {x1: 0, x2: 700, y1: y - 30, y2: y - 30, class: "axis"});
    draw(svg, "text", {x: at[0], y: y + 5, "font-size": 17, "font-weight": 600}, word);
    draw(svg, "text", {x: at[1], y: y + 5, class: "value", "font-size": 17}, shown(scores[i]));
    draw(svg, "text", {x: at[2], y: y + 5, class: "value", "font-size": 17}, shown(divided[i]));
    draw(svg, "rect", {x: at[3], y: y - 12, width: Math.max(1, 150 * weights[i]), height: 24, rx: 4, fill: COLOURS[i]});
    draw(svg, "text", {x: at[3] + 8 + 150 * weights[i], y: y + 5, class: "value", "font-size": 17}, weights[i].toFixed(2));
    draw(svg, "circle", {cx: at[4] + 18, cy: y, r: 15, fill: COLOURS[i]});
    draw(svg, "text", {x: at[4] + 42, y: y + 5, "font-size": 17}, `v${"₁₂"[i]}`);
  });
  const y = 210, share = Math.round(100 * weights[0]);
  draw(svg, "line", {x1: 0, x2: 700, y1: y - 38, y2: y - 38, class: "axis"});
  draw(svg, "text", {x: 0, y: y + 5, "font-size": 17}, `z₁ = ${weights[0].toFixed(2)} · v₁ + ${weights[1].toFixed(2)} · v₂`);
  draw(svg, "circle", {cx: at[4] + 18, cy: y, r: 22, fill: `color-mix(in oklab, ${COLOURS[0]} ${share}%, ${COLOURS[1]})`});
  draw(svg, "text", {x: at[4] + 50, y: y + 5, "font-size": 17, "font-weight": 600}, "z₁");
});

// 2. Scores of random queries and keys.
let seed = 7;
const QUERIES = 60, KEYS = 9;

/** Numbers of variance 1, the same for the same seed (mulberry32, Box and Muller). */
function normal(seed, count) {
  let state = seed;
  const uniform = () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return (((t ^ (t >>> 14)) >>> 0) + 0.5) / 4294967296;
  };
  return Float64Array.from({length: count}, () =>
    Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform()));
}

function randomRows(width) {
  const row = (i) => normal(seed * 1000 + i, 256).subarray(0, width);
  return [Array.from({length: QUERIES}, (_, i) => row(i)), Array.from({length: KEYS}, (_, i) => row(500 + i))];
}

const scaled = part("scale", {width: (v) => Math.round(2 ** v), temperature: twice}, (place, {width, divide, temperature}) => {
  const [queries, keys] = randomRows(width), factor = (divide ? width ** -0.5 : 1) / temperature;
  const scores = queries.map((q) => keys.map((k) => dot(q, k) * factor));
  const weights = attentionWeights(queries, keys, {divide, temperature});
  const svg = picture(place, 700, 250, say("scores and weights of one query", "쿼리 하나의 점수와 가중치"));
  const most = Math.max(4, ...scores[0].map(Math.abs)), average = (f) => weights.reduce((sum, row) => sum + f(row), 0) / QUERIES;
  draw(svg, "text", {x: 0, y: 16, class: "soft"}, say("scores of one query with nine keys", "쿼리 하나와 키 아홉 개의 점수"));
  draw(svg, "text", {x: 370, y: 16, class: "soft"}, say("weights after softmax", "소프트맥스를 거친 가중치"));
  draw(svg, "line", {x1: 0, x2: 330, y1: 135, y2: 135, class: "axis"});
  draw(svg, "line", {x1: 370, x2: 700, y1: 225, y2: 225, class: "axis"});
  keys.forEach((_, j) => {
    const high = (scores[0][j] / most) * 85, x = 6 + 36 * j;
    draw(svg, "rect", {x, y: Math.min(135, 135 - high), width: 26, height: Math.max(1, Math.abs(high)), rx: 3, fill: COLOURS[0]});
    draw(svg, "text", {x: x + 13, y: high >= 0 ? 152 : 128, "text-anchor": "middle", "font-size": 11}, scores[0][j].toFixed(1));
    const tall = Math.max(1, weights[0][j] * 175);
    draw(svg, "rect", {x: 370 + x, y: 225 - tall, width: 26, height: tall, rx: 3, fill: COLOURS[1]});
    draw(svg, "text", {x: 383 + x, y: 241, "text-anchor": "middle", "font-size": 11}, percent(weights[0][j]));
  });
  const all = scores.flat(), mean = all.reduce((a, b) => a + b, 0) / all.length;
  tiles(place, [
    ["variance", say("variance of the scores", "점수의 분산"), all.reduce((sum, s) => sum + (s - mean) ** 2, 0) / all.length],
    ["entropy", say("bits of entropy", "엔트로피(비트)"), average(entropy)],
    ["peaked", say("queries with a weight over 0.9", "가중치가 0.9를 넘는 쿼리"), percent(average((row) => Math.max(...row) > 0.9))],
    ["slope", say("slope of softmax", "소프트맥스의 기울기"), average(slope)],
  ]);
  caption(place, say(`averages over ${QUERIES} queries`, `쿼리 ${QUERIES}개의 평균`));
});

// 3. Sines and cosines.
const PLACES = 101;
const positioned = part("positions", {longest: (v) => 2 * Math.PI * 10 ** v, width: twice}, (place, {longest, width, distance}) => {
  const base = longest / (2 * Math.PI), vectors = Array.from({length: PLACES}, (_, t) => position(t, width, base));
  const dots = vectors.map((v) => dot(vectors[0], v));
  caption(place, say("100 places (down), dimensions (across): −1 white, 1 dark", "자리 100개(세로), 차원(가로): −1은 흰색, 1은 짙은 색"));
  const canvas = document.createElement("canvas"), pen = Object.assign(canvas, {width, height: PLACES}).getContext("2d");
  const image = pen.createImageData(width, PLACES);
  vectors.forEach((row, t) => row.forEach((value, d) => {
    const part = (value + 1) / 2;
    [0, 1, 2].forEach((c) => (image.data[4 * (t * width + d) + c] = 255 - part * (255 - [10, 82, 140][c])));
    image.data[4 * (t * width + d) + 3] = 255;
  }));
  pen.putImageData(image, 0, 0);
  place.append(canvas);
  const svg = picture(place, 700, 210, say("dot product by distance", "거리에 따른 내적"));
  const x = (d) => 36 + 6.5 * d, y = (v) => 105 - (v / (width / 2)) * 80;
  [1, 0, -1].forEach((level) => {
    draw(svg, "line", {x1: 36, x2: 690, y1: y((level * width) / 2), y2: y((level * width) / 2), class: "axis"});
    draw(svg, "text", {x: 28, y: y((level * width) / 2) + 4, "text-anchor": "end", "font-size": 11}, shown((level * width) / 2));
  });
  draw(svg, "polyline", {points: dots.map((v, d) => `${x(d)},${y(v)}`).join(" "), fill: "none", stroke: COLOURS[0], "stroke-width": 2});
  draw(svg, "circle", {cx: x(distance), cy: y(dots[distance]), r: 6, fill: COLOURS[1]});
  draw(svg, "text", {x: 363, y: 207, "text-anchor": "middle", class: "soft"}, say("distance d", "거리 d"));
  let nearest = Infinity;
  for (let a = 0; a < PLACES; a++) for (let b = 0; b < a; b++)
    nearest = Math.min(nearest, Math.hypot(...vectors[a].map((v, d) => v - vectors[b][d])));
  tiles(place, [
    ["dot", say(`dot product at distance ${distance}`, `거리 ${distance}의 내적`), dots[distance]],
    ["share", say("of its largest", "최댓값에 대한 비율"), percent(dots[distance] / dots[0])],
    ["nearest", say("least distance of two places", "가장 가까운 두 자리의 거리"), nearest],
  ]);
});

// 4. The mask, in the decoder of the translator.
const SOURCE = translator.encode("I go home and eat pizza.");
const TARGET = translator.encode("Ich gehe nach Hause und esse Pizza.");
const name = (id) => (id === 1 ? "<s>" : id === 2 ? "</s>" : translator.pieces[id]);
const masked = part("mask", {}, (place, {mask, layer, head}) => {
  const {logits, kept} = translator.run(SOURCE, TARGET, mask), weights = kept[`decoder.${layer - 1}.self`][head - 1];
  const inputs = [1, ...TARGET], cell = Math.min(30, 400 / inputs.length), left = 130, top = 92;
  const svg = picture(place, 700, top + cell * inputs.length + 6, say("attention weights", "어텐션 가중치"));
  draw(svg, "text", {x: left + cell * inputs.length + 20, y: top - 10, class: "soft"}, say("has to guess", "맞혀야 할 단어"));
  inputs.forEach((id, i) => {
    draw(svg, "text", {x: left - 8, y: top + cell * (i + 0.5) + 4, "text-anchor": "end", "font-size": 12}, name(id));
    const x = left + cell * (i + 0.5);
    draw(svg, "text", {x, y: top - 8, "font-size": 12, transform: `rotate(-50 ${x} ${top - 8})`}, name(id));
    const next = [...TARGET, 2][i], p = softmax(logits[i])[next], side = left + cell * inputs.length + 20;
    draw(svg, "text", {x: side, y: top + cell * (i + 0.5) + 4, "font-size": 12}, name(next));
    draw(svg, "rect", {x: side + 90, y: top + cell * i + 3, width: Math.max(1, 60 * p), height: cell - 6, rx: 3, fill: COLOURS[1]});
    draw(svg, "text", {x: side + 96 + 60 * p, y: top + cell * (i + 0.5) + 4, "font-size": 11, class: "value"}, percent(p));
    weights[i].forEach((weight, j) => {
      const hidden = mask && j > i;
      const box = draw(svg, "rect", {x: left + cell * j, y: top + cell * i, width: cell - 1.5, height: cell - 1.5, rx: 2,
        fill: hidden ? "var(--line)" : `color-mix(in oklab, var(--blue) ${100 * weight ** 0.6}%, var(--pale))`,
        opacity: hidden ? 0.55 : 1});
      draw(box, "title", {}, hidden ? say("hidden: −∞", "가림: −∞") : `${name(id)} → ${name(inputs[j])}: ${percent(weight)}`);
    });
  });
  const ahead = weights.reduce((sum, row, i) => sum + row.reduce((s, w, j) => s + (j > i ? w : 0), 0), 0) / weights.length;
  tiles(place, [
    ["loss", say("loss of the true translation", "정답 번역의 손실"), translator.loss(SOURCE, TARGET, mask)],
    ["ahead", say("weight on words still to come", "뒤에 올 단어에 가는 가중치"), percent(ahead)],
  ]);
});

// 5. The translator on the reader's own sentence.
let chosen = null, before = "";
const translated = part("translator", {temperature: twice}, (place, values, again) => {
  const {sentence, kind, temperature} = values;
  if (sentence + kind !== before) chosen = null;
  before = sentence + kind;
  const source = translator.encode(sentence).slice(0, 38), target = translator.translate(source);
  const {logits, kept} = translator.run(source, target), inputs = [1, ...target];
  document.querySelector(".translation").textContent = translator.decode(target) || "…";
  const own = kind.endsWith("self"), side = kind.startsWith("encoder") ? [...source, 2] : inputs;
  const keys = own ? side : [...source, 2], names = side.map((id, i) => (own || kind.startsWith("encoder") ? name(id) : name([...target, 2][i])));
  const size = Math.min(15, 1500 / Math.max(names.join("").length + 2 * names.length, keys.length * 6));
  const svg = picture(place, 960, 250, say("what each word looks at", "단어마다 무엇을 보는가"));
  const spread = (count) => (i) => 30 + ((i + 0.5) * 900) / count;
  const [upper, lower] = [spread(names.length), spread(keys.length)];
  kept[kind].forEach((weights, head) => {
    if (!values[`head${head}`]) return;
    weights.forEach((row, i) => row.forEach((weight, j) => {
      if (weight < 0.03 || (chosen !== null && chosen !== i)) return;
      const shift = (head - 1.5) * 2.5;
      draw(svg, "path", {d: `M${upper(i) + shift},42 C${upper(i) + shift},125 ${lower(j) + shift},125 ${lower(j) + shift},208`,
        fill: "none", stroke: COLOURS[head], "stroke-width": 0.6 + 4.5 * weight, opacity: 0.25 + 0.75 * weight});
    }));
  });
  names.forEach((word, i) => {
    const text = draw(svg, "text", {x: upper(i), y: 30, "text-anchor": "middle", class: `word${chosen === i ? " chosen" : ""}`,
      style: `font-size: ${size}px`, tabindex: 0, role: "button"}, word);
    const pick = () => { chosen = chosen === i ? null : i; again(); };
    text.addEventListener("click", pick);
    text.addEventListener("keydown", (event) => event.key === "Enter" && pick());
  });
  keys.forEach((id, j) => draw(svg, "text", {x: lower(j), y: 228, "text-anchor": "middle", style: `font-size: ${size}px`}, name(id)));
  if (kind.startsWith("encoder") || chosen === null) return;
  const probabilities = softmax(logits[chosen].map((logit) => logit / temperature));
  const best = probabilities.map((p, id) => [p, id]).sort((a, b) => b[0] - a[0]).slice(0, 5);
  caption(place, say(`the five likeliest words after “${inputs.slice(0, chosen + 1).map(name).join(" ")}”`,
    `“${inputs.slice(0, chosen + 1).map(name).join(" ")}” 다음에 올 확률이 가장 높은 다섯 단어`));
  const bars = picture(place, 960, 130, say("next words", "다음 단어"));
  best.forEach(([p, id], i) => {
    draw(bars, "text", {x: 110, y: 18 + 25 * i, "text-anchor": "end"}, name(id));
    draw(bars, "rect", {x: 122, y: 5 + 25 * i, width: Math.max(1, 700 * p), height: 18, rx: 4, fill: COLOURS[0]});
    draw(bars, "text", {x: 130 + 700 * p, y: 18 + 25 * i, class: "value"}, percent(p));
  });
});

// Both languages.
const parts = [byHand, scaled, positioned, masked, translated];
function speak(language) {
  document.documentElement.lang = language;
  document.title = say("Attention, by hand", "손으로 움직여 보는 어텐션");
  document.getElementById("language").textContent = say("한국어", "English");
  parts.forEach((again) => again());
}
document.getElementById("language").addEventListener("click", () => speak(say("ko", "en")));
speak(navigator.language.startsWith("ko") ? "ko" : "en");
