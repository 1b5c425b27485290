// Requests to the server that sent the page, and what can go wrong with them.

import { change, state } from "./store.js";

/** What went wrong: "key", "away", "ending", "busy", "stopped" or "refused". */
export class Trouble extends Error {
  /** @param {string} kind @param {string} message  one line, of the server */
  constructor(kind, message = "") {
    super(message);
    this.kind = kind;
  }

  /** Whether the same request may succeed later. */
  get passes() {
    return ["away", "ending", "busy"].includes(this.kind);
  }
}

const KINDS = { 401: "key", 429: "busy", 502: "away", 503: "ending", 504: "busy" };

/**
 * Send a request: an object as JSON, a form or a file as it is, nothing as GET.
 * @param {string} path  relative to the page, which may stand below a path
 * @param {{signal?: AbortSignal}} options
 * @returns {Promise<Response>} an answer without an error
 */
export async function send(path, body, { signal } = {}) {
  const plain = body === undefined || body instanceof Blob || body instanceof FormData;
  const headers = {};
  if (!plain) headers["Content-Type"] = "application/json";
  else if (body instanceof Blob) headers["Content-Type"] = "application/octet-stream";
  if (state().key) headers.Authorization = `Bearer ${state().key}`;
  const method = body === undefined ? "GET" : "POST";
  const sent = plain ? body : JSON.stringify(body);
  const response = await fetch(path, { method, headers, body: sent, signal }).catch(lost(signal));
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  const kind = KINDS[response.status] ?? "refused";
  if (kind === "key") change({ locked: true });
  throw new Trouble(kind, answer.error?.message ?? answer.error ?? `${response.status} ${response.statusText}`);
}

/** The JSON of an answer; see `send`. */
export async function ask(path, body, options = {}) {
  const response = await send(path, body, options);
  return response.json().catch(lost(options.signal));
}

/** The events of an answer that is streamed, each an object; see `send`. */
export async function* events(path, body, options = {}) {
  const response = await send(path, body, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read().catch(lost(options.signal));
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part === "data: [DONE]") return; // as OpenAI's streams end
      const event = JSON.parse(part.slice("data: ".length));
      if (event.error) throw new Trouble("refused", event.error.message ?? event.error);
      yield event;
    }
  }
}

const lost = (signal) => () => {
  throw new Trouble(signal?.aborted ? "stopped" : "away");
};
