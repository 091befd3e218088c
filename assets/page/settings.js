// Settings survive a reload and can be shared as a link: those that differ from the defaults are in the address after
// "#", which the server never sees and which may be long. Each tab has its own; a new tab starts with the last used ones.

import { copy } from "./files.js";
import * as gradio from "./gradio.js";
import { isObject, isText, restore, store } from "./storage.js";

const KEY = "specdemo-settings";
const PAUSE_MS = 300; // after the last key; Safari refuses more than 100 new addresses in 30 seconds
/** @type {ReturnType<typeof setTimeout> | undefined} */ let timer;
/** @typedef {Record<string, string>} Texts */

/** @type {Texts | undefined} */ let current; // differences from the defaults, once anything was remembered
/** @type {Record<string, Record<string, any>>} */ let valuesByDrafter = {}; // each drafter's last values
const FIRST = "compare";
let tab = FIRST; // the open one
/** @type {string | undefined} */ let drafter; // as last remembered

/** The settings in the address after "#", or after "?" if typed by hand. */
const linked = () => new URLSearchParams(`${location.search.slice(1)}&${location.hash.slice(1)}`);

/** The address for these settings. @param {Texts} settings */
function address(settings) {
  const all = new URLSearchParams(settings);
  all.delete("tab");
  if (tab !== FIRST) all.set("tab", tab);
  return all.size ? `${location.pathname}#${all}` : location.pathname;
}

/** Remember changed settings. @param {string[]} names @param {any[]} defaults @param {any[]} values in this order, too */
export function remember(names, defaults, ...values) {
  const changed = current ?? Object.fromEntries(linked());
  names.forEach((name, index) => {
    const value = values[index] ?? null;
    if (value === defaults[index] || value === null) delete changed[name];
    else changed[name] = String(value);
  });
  current = changed;
  const now = Object.fromEntries(names.map((name, index) => [name, values[index]]));
  drafter ??= now.drafter;
  // a drafter just chosen gets its own values back first
  if (now.drafter === drafter && drafter) valuesByDrafter[drafter] = now;
  drafter = now.drafter ?? drafter;
  clearTimeout(timer);
  timer = setTimeout(() => {
    history.replaceState(null, "", address(changed));
    store(KEY, changed);
    store(KEY, changed, "sessionStorage");
  }, PAUSE_MS);
}

/** A drafter's last values, else `initial` ones, else the current ones. @param {Record<string, any>} initial @param {any[]} values its name first */
export function recallDrafter(initial, ...values) {
  return Object.keys(initial).map((name, index) => valuesByDrafter[values[0]]?.[name] ?? initial[name] ?? values[index]);
}

/** Remember another pair: how it differs, or all for another target. @param {Record<string, any>} defaults @param {string} values as JSON */
export function rememberPair(defaults, values) {
  const chosen = JSON.parse(values);
  scrollTo({ top: 0 }); // of Compare, which opens
  valuesByDrafter = {};
  const names = Object.keys(defaults);
  const base = chosen.target === defaults.target ? defaults : {};
  remember(names, names.map((name) => base[name]), ...names.map((name) => chosen[name]));
}

/** The initial settings as JSON: the address's, else those last used in this tab, else in any. @param {string[]} names */
export function recall(names) {
  gradio.explainQueue();
  gradio.explainLabels();
  const link = linked();
  gradio.watchTabs((name) => {
    if (!name || name === tab) return;
    tab = name;
    history.pushState(null, "", address(current ?? Object.fromEntries(linked())));
  });
  const openLinked = () => gradio.openTab(tab = linked().get("tab") ?? FIRST);
  addEventListener("popstate", openLinked); // Back leads to the tab before
  if (link.has("tab")) setTimeout(openLinked); // once Gradio has drawn it
  const stored = restore(KEY, "sessionStorage") ?? restore(KEY);
  const saved = names.some((name) => link.has(name)) ? Object.fromEntries(link) : stored;
  const usable = Object.entries(isObject(saved) ? saved : {}).filter(([name, text]) => names.includes(name) && isText(text));
  return JSON.stringify(Object.fromEntries(usable));
}

/** @param {string} lines */
export const copyCode = (lines) => lines && copy(/** @type {Element} */ (document.querySelector("#copy-code")), lines);
