// What the whole page knows, and what this device remembers of it.

import { useLayoutEffect, useReducer } from "./vendor/preact.js";

const NAME = "transduct";
// Choices that survive a reload. The key of the server lives as long as the tab.
const KEPT = ["text", "source", "target", "model", "recent", "underline", "tongue", "beam"];

/**
 * @typedef {object} State
 * @property {string} tongue  language of the page, "en" or "ko"
 * @property {string} tab  which page is open: "text", "files" or the name of a model
 * @property {string} text  what is to be translated
 * @property {string} source  its language, or "auto"
 * @property {string} target
 * @property {string} model  the name of a translator, or "" for the one that the languages need
 * @property {number} beam  0 for the model's own
 * @property {string[]} recent  the languages last used, the latest first
 * @property {boolean} underline  whether words of low probability are underlined
 * @property {boolean} keep  whether this device remembers text and choices
 * @property {string} key  for the server
 * @property {boolean} locked  whether the server asks for another key
 * @property {object|null} health  the server's `/health`
 * @property {{code: string, name: string, targets: string[]}[]} languages  its `/languages`
 */

/** @type {State} */
let now = {
  tongue: navigator.language.startsWith("ko") ? "ko" : "en",
  tab: "text",
  text: "",
  source: "auto",
  target: "",
  model: "",
  beam: 0,
  recent: [],
  underline: false,
  keep: true,
  key: "",
  locked: false,
  health: null,
  languages: [],
  ...remembered(),
};
const listeners = new Set();

/** The state now. */
export const state = () => now;

/** Change some of it: every component that uses it is drawn again. @param {Partial<State>} some */
export function change(some) {
  now = { ...now, ...some };
  remember();
  for (const listener of listeners) listener();
}

/** The state, for a component. @returns {State} */
export function useApp() {
  const [, again] = useReducer((count) => count + 1, 0);
  useLayoutEffect(() => {
    listeners.add(again);
    return () => listeners.delete(again);
  }, []);
  return now;
}

function remembered() {
  try {
    return { ...JSON.parse(localStorage.getItem(NAME)), key: sessionStorage.getItem(NAME) ?? "" };
  } catch {
    return {}; // storage is forbidden, or another program wrote there
  }
}

function remember() {
  try {
    const kept = Object.fromEntries(KEPT.map((name) => [name, now[name]]));
    localStorage.setItem(NAME, JSON.stringify(now.keep ? kept : { keep: false }));
    if (now.keep) sessionStorage.setItem(NAME, now.key);
    else sessionStorage.removeItem(NAME);
  } catch {
    // storage is forbidden or full: the page works without it
  }
}
