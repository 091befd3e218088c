// A document for the page's modules, without a browser: jsdom, with what it lacks.

import { readFileSync } from "node:fs";
import { register } from "node:module";
import { JSDOM } from "jsdom";

export const PAGE = new URL("../../assets/page/", import.meta.url);
const { window } = new JSDOM("<!doctype html><body></body>", { url: "http://localhost:7860/", pretendToBeVisual: true });
const NAMES = [
  "document", "DOMParser", "Element", "HTMLElement", "HTMLInputElement", "HTMLTextAreaElement", "Event", "CustomEvent", "KeyboardEvent",
  "MutationObserver", "getComputedStyle", "localStorage", "sessionStorage", "location", "history", "requestAnimationFrame", "cancelAnimationFrame",
  "addEventListener",
];
for (const name of NAMES) globalThis[name] = typeof window[name] === "function" && /^[a-z]/.test(name) ? window[name].bind(window) : window[name];
globalThis.window = window;
globalThis.matchMedia = () => ({ matches: false, addEventListener() {} });
globalThis.ResizeObserver = class { observe() {} };
globalThis.devicePixelRatio = 1;
globalThis.scrollTo = () => {};

/** What was drawn on canvases: the name of each method and its arguments. */
export const drawn = [];
const pen = new Proxy({}, {
  get: (kept, name) => (name in kept ? kept[name] : (...values) => { drawn.push([name, ...values]); return { width: 10 }; }),
  set: (kept, name, value) => { kept[name] = value; return true; },
});
window.HTMLCanvasElement.prototype.getContext = () => pen;
for (const [name, size] of [["offsetWidth", 400], ["offsetHeight", 300]]) {
  Object.defineProperty(window.HTMLElement.prototype, name, { get: () => size });
}

/** What Plotly was asked for: the name of each function and its arguments. */
export const asked = [];
globalThis.Plotly = new Proxy({ Plots: { resize() {} } }, {
  get: (kept, name) => kept[name] ?? ((...values) => { asked.push([name, ...values]); return Promise.resolve(); }),
});
// the real one comes from the Python package, under an address of the server
register(`data:text/javascript,${encodeURIComponent(`
  export async function resolve(specifier, context, next) {
    if (specifier.endsWith("plotly.min.js")) return { url: "data:text/javascript,", shortCircuit: true };
    return next(specifier, context);
  }
`)}`);

/** The page's own markup, in the document. */
export function show(name) {
  document.body.innerHTML = readFileSync(new URL(name, PAGE), "utf8");
  return document.body;
}

/** A module of the page. */
export function load(name) {
  return import(new URL(name, PAGE));
}

/** Wait until it holds. */
export async function until(holds) {
  const end = Date.now() + 10_000;
  while (!holds()) {
    if (Date.now() > end) throw new Error(`it never held that ${holds}`);
    await new Promise((done) => setTimeout(done, 5));
  }
}
