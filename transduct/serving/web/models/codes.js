// A picture, and what a model rebuilds of it from its codes.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Icon } from "../parts.js";
import { send } from "../server.js";
import { say } from "../words.js";
import { FileChoice, useAddress, useFile } from "./file.js";
import { address, Progress, useAnswer } from "./work.js";

/** @param {{model: import("./pages.js").Model, given: File[], taken: () => void}} props */
export function Page({ model, given, taken }) {
  const [file, choose] = useFile(given, taken);
  const question = async (signal) => (await send(address("v1/predict", { model: model.name }), file, { signal })).blob();
  const found = useAnswer(file && question, [file, model]);
  const both = useAddress(found.answer);
  const [halves, split] = useState([]);
  useEffect(() => {
    if (found.answer) void halvesOf(found.answer).then(split);
  }, [found.answer]);
  const [original, rebuilt] = [useAddress(halves[0]), useAddress(halves[1])];
  return html`
    <${FileChoice} kind="picture" file=${file} choose=${choose} />
    <${Progress} ...${found} />
    ${halves.length > 0 && html`<div class="beside">
      <figure class="card looked"><div class="over"><img class="pixels" src=${original} alt=${say("codes.original")} /></div>
        <figcaption>${say("codes.original")}</figcaption></figure>
      <figure class="card looked"><div class="over"><img class="pixels" src=${rebuilt} alt=${say("codes.rebuilt")} /></div>
        <figcaption>${say("codes.rebuilt")}</figcaption></figure>
    </div>
    <div class="row"><a class="chip" href=${both} download="rebuilt.png"><${Icon} name="download" />${say("model.save")}</a></div>`}
  `;
}

/** The picture as it was read, and below it the rebuilt one, as two pictures. */
async function halvesOf(blob) {
  const whole = await createImageBitmap(blob);
  const { width } = whole;
  const height = whole.height / 2;
  return Promise.all([0, 1].map((half) => {
    const canvas = Object.assign(document.createElement("canvas"), { width, height });
    canvas.getContext("2d").drawImage(whole, 0, -half * height);
    return new Promise((resolve) => canvas.toBlob(resolve));
  }));
}
