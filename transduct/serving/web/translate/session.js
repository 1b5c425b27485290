// The translation of the text that is being written: sentence by sentence, each asked for once.

import { ask, events, Trouble } from "../server.js";
import { cut } from "./sentences.js";

const AT_ONCE = 4; // requests; browsers send six to one server
const LARGEST = 16; // sentences of one request
const REMEMBERED = 2000; // sentences
const LATEST = 8000; // milliseconds between two tries

/**
 * @typedef {object} Result
 * @property {string} text  the translation, or what is known of it
 * @property {boolean} done
 * @property {object[]|null} tokens  see `/v1/translate`
 * @property {string} [error]  what the server refuses of this sentence
 *
 * @typedef {{text: string, gap: string, result: Result}} Piece
 * @typedef {{source: string, target: string, model: string, beam: number}} Choice
 */

export class Session {
  /** @param {() => void} changed  called at most once a frame */
  constructor(changed) {
    this.changed = changed;
    this.found = new Map();
    this.chosen = new Map(); // what stands instead of a sentence's own translation, the latest last
    /** @type {Piece[]} */
    this.pieces = [];
    this.fields = {};
    this.detected = "";
    this.trouble = null;
    this.busy = false;
    this.seconds = 0;
    this.news = ""; // what was translated last, to be announced once
    this.control = new AbortController();
  }

  /**
   * Translate a text; what is asked for another one is given up.
   * @param {string} text
   * @param {Choice} choice
   * @param {boolean} detects  whether there are languages to choose from
   */
  async go(text, choice, detects) {
    this.stop();
    const { signal } = (this.control = new AbortController());
    const began = performance.now();
    Object.assign(this, { trouble: null, busy: true });
    try {
      const from = await this.#language(text, choice.source, detects, signal);
      this.fields = fieldsOf({ ...choice, source: from });
      const missing = this.#lay(cut(text, from));
      const groups = grouped([...new Set(missing)]);
      const before = new Set(missing);
      const workers = Array.from({ length: AT_ONCE }, async () => {
        while (groups.length) await this.#insist(groups.shift(), signal);
      });
      await Promise.all(workers);
      const fresh = this.pieces.filter(({ text: one }) => before.has(one));
      this.news = fresh.map(({ result }) => result.text).join(" ");
    } catch (error) {
      if (!(error instanceof Trouble)) throw error;
      if (signal !== this.control.signal) return;
      if (error.kind !== "stopped") this.trouble = error;
    }
    if (signal !== this.control.signal) return;
    this.seconds = (performance.now() - began) / 1000;
    this.busy = false;
    this.#tell();
  }

  /** Give up what is asked for. */
  stop() {
    this.control.abort();
    this.busy = false;
    this.#tell();
  }

  get text() {
    return this.pieces.map(({ result, gap }) => result.text + gap).join("");
  }

  /**
   * Let a sentence's translation begin as another does, and translate the rest anew.
   * @param {number} place  of the sentence
   * @param {string} text  the other translation
   * @param {string} [prefix]  what is kept of it; all of it if not given
   */
  async choose(place, text, prefix) {
    const piece = this.pieces[place];
    const key = this.#key(piece.text);
    const shown = { text, done: prefix === undefined, tokens: null };
    this.chosen.set(key, [...(this.chosen.get(key) ?? []), shown]);
    piece.result = shown;
    this.#tell();
    if (prefix === undefined) return;
    try {
      // No signal: what is typed meanwhile does not take a choice back.
      await this.#stream(piece.text, { prefixes: [prefix] }, undefined, shown);
    } catch (error) {
      if (!(error instanceof Trouble)) throw error;
      Object.assign(shown, { text, done: true });
      this.trouble = error;
    }
    this.news = shown.text;
    this.#tell();
  }

  /** Take a choice back. @returns whether there was one */
  back(place) {
    const piece = this.pieces[place];
    const before = this.chosen.get(this.#key(piece?.text))?.slice(0, -1);
    if (!before) return false;
    if (before.length) this.chosen.set(this.#key(piece.text), before);
    else this.chosen.delete(this.#key(piece.text));
    piece.result = before.at(-1) ?? this.found.get(this.#key(piece.text));
    this.news = piece.result.text;
    this.#tell();
    return true;
  }

  async #language(text, source, detects, signal) {
    if (source !== "auto") return source;
    if (!detects || !text.trim()) return "";
    const [best] = await this.#patient(() => ask("detect", { q: text }, { signal }), signal);
    this.detected = best.language;
    return best.language;
  }

  #key(text) {
    return JSON.stringify([this.fields, text]);
  }

  /** Show what is known of some sentences. @returns the others */
  #lay(sentences) {
    const before = this.pieces;
    this.pieces = sentences.map((one, place) => {
      const key = this.#key(one.text);
      const known = one.text.trim() ? this.chosen.get(key)?.at(-1) ?? this.found.get(key) : BLANK;
      const old = before[place]?.result.text ?? "";
      return { ...one, result: known ?? { text: old, done: false, stale: true, tokens: null } };
    });
    this.#tell();
    return this.pieces
      .filter(({ text, result }) => !result.done && !this.chosen.has(this.#key(text)))
      .map(({ text }) => text);
  }

  /** Ask for some sentences until there is an answer. */
  async #insist(sentences, signal) {
    await this.#patient(async () => {
      if (sentences.length > 1) return this.#together(sentences, signal);
      try {
        await this.#stream(sentences[0], {}, signal);
      } catch (error) {
        if (error.kind !== "refused") throw error;
        this.#learn(sentences[0], { text: "", done: true, tokens: null, error: error.message });
      }
    }, signal);
  }

  async #patient(work, signal) {
    for (let wait = 500; ; wait = Math.min(2 * wait, LATEST)) {
      try {
        const result = await work();
        this.trouble = null;
        return result;
      } catch (error) {
        if (!error.passes || signal.aborted) throw error;
        this.trouble = error;
        this.#tell();
        await new Promise((resolve) => setTimeout(resolve, wait));
        if (signal.aborted) throw new Trouble("stopped");
      }
    }
  }

  async #together(sentences, signal) {
    const body = { texts: sentences, ...WITH, ...this.fields };
    const { translations, errors } = await ask("v1/translate", body, { signal });
    sentences.forEach((text, n) => {
      const { text: shown, tokens } = translations[n] ?? { text: "" };
      this.#learn(text, { text: shown, done: true, tokens, error: errors?.[n] ?? undefined });
    });
  }

  async #stream(text, more, signal, result = { text: "", done: false, tokens: null }) {
    const body = { texts: [text], stream: true, ...WITH, ...this.fields, ...more };
    let shown = "";
    for await (const { delta, translations } of events("v1/translate", body, { signal })) {
      shown += delta ?? "";
      const last = translations?.[0];
      Object.assign(result, { text: last?.text ?? shown, tokens: last?.tokens, done: !!last });
      if (more.prefixes) this.#tell();
      else this.#learn(text, { ...result });
    }
  }

  #learn(text, result) {
    const key = this.#key(text);
    if (result.done) this.found.set(key, result);
    if (this.found.size > REMEMBERED) this.found.delete(this.found.keys().next().value);
    for (const piece of this.pieces) if (piece.text === text) piece.result = result;
    this.#tell();
  }

  #tell() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.changed();
    });
  }
}

const BLANK = { text: "", done: true, tokens: null };
const WITH = { log_probabilities: true, alignments: true };

/** What a request says about languages and search. @param {Choice} choice */
export function fieldsOf({ source, target, model, beam }) {
  const fields = { from: source === "auto" ? "" : source, to: target, model, beam };
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value));
}

/** Few sentences are asked for one by one, and streamed; many in groups. */
function grouped(sentences) {
  const size = Math.min(LARGEST, Math.max(1, Math.ceil(sentences.length / AT_ONCE)));
  const count = Math.ceil(sentences.length / size);
  return Array.from({ length: count }, (_, n) => sentences.slice(n * size, (n + 1) * size));
}
