// The call that gives the same answer, for programs.

import { html, useState } from "../vendor/preact.js";
import { Copy, tabId, Tabs } from "../parts.js";
import { state } from "../store.js";
import { say } from "../words.js";

const KINDS = [["curl", "curl"], ["python", "Python"], ["libre", "LibreTranslate"]];

/** @param {{sentences: string[], fields: object}} given */
export function AsRequest({ sentences, fields }) {
  const [kind, choose] = useState("curl");
  const code = { curl: curl(ours(sentences, fields)), python: python(ours(sentences, fields)),
    libre: curl(libre(sentences, fields)) }[kind];
  return html`<section class="card" aria-label=${say("request.title")}>
    <div class="row"><${Tabs} name=${say("request.title")} tabs=${KINDS} chosen=${kind} choose=${choose} panel="code" />
      <span class="space"></span><${Copy} name=${say("text.copy")} text=${() => code} /></div>
    <pre id="code" role="tabpanel" aria-labelledby=${tabId(kind)} tabindex="0" lang="en">${code}</pre>
  </section>`;
}

const address = (path) => new URL(path, location.href.split("#")[0]).href;
const ours = (texts, fields) => ({ url: address("v1/translate"), body: { texts, ...fields } });

function libre(texts, { from, to }) {
  const body = { q: texts, source: from ?? "auto", target: to ?? "und" };
  return { url: address("translate"), body };
}

function curl({ url, body }) {
  const quoted = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  const key = state().health.key ? ' \\\n  -H "Authorization: Bearer $KEY"' : "";
  return `curl ${url} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${quoted}'`;
}

function python({ url, body }) {
  const key = state().health.key ? ', "Authorization": "Bearer " + key' : "";
  return `import json
from urllib.request import Request, urlopen

body = json.loads(r"""${JSON.stringify(body, null, 2)}""")
headers = {"Content-Type": "application/json"${key}}
request = Request("${url}", json.dumps(body).encode(), headers)
for translation in json.load(urlopen(request))["translations"]:
    print(translation["text"])`;
}
