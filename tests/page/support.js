// A document for the page's modules without a browser: jsdom, with stubs for what it lacks.

import { readFileSync } from "node:fs";
import { JSDOM } from "jsdom";

const GLOSSARY = JSON.parse(readFileSync(new URL("../../assets/glossary.json", import.meta.url), "utf8"));
export const PAGE = new URL("../../assets/page/", import.meta.url);
const { window } = new JSDOM("<!doctype html><body></body>", { url: "http://localhost:7860/", pretendToBeVisual: true });
const NAMES = [
  "document", "DOMParser", "Element", "HTMLElement", "Text", "HTMLInputElement", "HTMLTextAreaElement", "Event", "CustomEvent", "KeyboardEvent",
  "MutationObserver", "getComputedStyle", "localStorage", "sessionStorage", "location", "history", "requestAnimationFrame", "cancelAnimationFrame",
  "addEventListener",
];
for (const name of NAMES) globalThis[name] = typeof window[name] === "function" && /^[a-z]/.test(name) ? window[name].bind(window) : window[name];
globalThis.window = window;
const sentences = Object.entries(GLOSSARY).flatMap(([term, { also = [], meaning }]) => [term, ...also].map((name) => [name, `${term}: ${meaning}.`]));
document.head.innerHTML = `<script id="terms" type="application/json">${JSON.stringify(Object.fromEntries(sentences))}</script>`;
globalThis.matchMedia = () => ({ matches: false, addEventListener() {} });
globalThis.ResizeObserver = class { observe() {} };
globalThis.devicePixelRatio = 1;
globalThis.scrollTo = () => {};
window.HTMLElement.prototype.scrollIntoView = window.HTMLElement.prototype.showPopover = () => {};

/** What Plotly was asked to draw. */
export const plotted = [];
const CHARTS = { script: "data:text/javascript,", colours: { ink: "#1b1f24" }, template: { font: "#1b1f24" }, config: {}, charts: {} };
const trace = (side, x, y) => ({ meta: { side, x, y } });
for (const name of ["tokens", "acceptance", "timing"]) CHARTS.charts[name] = { data: [name === "tokens" ? trace("speculative", "seconds", "tokens") : trace("speculative", "round", "accepted")], layout: { xaxis: {}, yaxis: {} } };
globalThis.Plotly = { purge() {}, react: async (element, data, layout) => { plotted.push(Object.assign(element, { data, layout })); } };
globalThis.fetch = async () => new Response(JSON.stringify(CHARTS));
globalThis.requestIdleCallback = (done) => setTimeout(done);
for (const [name, size] of [["offsetWidth", 400], ["offsetHeight", 300]]) {
  Object.defineProperty(window.HTMLElement.prototype, name, { get: () => size });
}

/** The page's own markup, in the document. */
export function show(name) {
  document.body.innerHTML = readFileSync(new URL(name, PAGE), "utf8");
  return document.body;
}

/** A module of the page. */
export function load(name) {
  return import(new URL(name, PAGE));
}

/** Wait until a condition holds. */
export async function until(holds) {
  const end = Date.now() + 10_000;
  while (!holds()) {
    if (Date.now() > end) throw new Error(`it never held that ${holds}`);
    await new Promise((done) => setTimeout(done, 5));
  }
}

/** A round of `seconds`: its committed tokens, the first `accepted` of which were proposed, and rejected proposals. */
export function round(seconds, texts, accepted = 0, vain = []) {
  const token = (text) => ({ id: 1, text, probability: null, entropy: null });
  const draft = (text, outcome) => ({ id: text === "?" ? null : 2, text, outcome, draft_probability: 0.943, target_probability: null });
  return {
    seconds, draft_seconds: null, verify_seconds: null, source: null, committed: texts.map(token),
    proposed: [...texts.slice(0, accepted).map((text) => draft(text, "accepted")), ...vain.map((text, index) => draft(text, index ? "discarded" : "rejected"))],
  };
}

const SUMMARY = {
  headline: "1.5× faster", direction: "faster", state: "clear", expectation: "Expect 1.4× to 1.6× faster.", pooled: "in this race", runs: 1, sentence: "Because.",
  certain: "", warnings: [{ chip: "disturbed", reason: "Others." }], why: ["Why.\npython -m specdemo"], seconds: { plain: 3, speculative: 2 },
  agreement: "identical output", identical: true, first_divergence: null, made_by: "a pair, lookahead 4.",
  notes: ["Recorded."], figures: [{ name: "acceptance rate α", plain: "", speculative: "0.50", meaning: "share of all proposals so far that the target accepted", formula: "accepted / proposed" }],
  speedup: 1.5, acceptance_rate: 0.5, mean_acceptance_length: 2.5,
};

/** A finished comparison of six tokens. */
export function comparison(changed = {}, said = {}) {
  const side = (...seconds) => ({ prefill: round(0.1, [" a"]), rounds: seconds.map((each) => round(each, [" b"])), finish_reason: "length" });
  return {
    pair: { name: "a pair", target: { chat_template: false, server: null } }, prompt: "Say", history: [], settings_updates: [], trace_source: "measured",
    settings: { max_new_tokens: 10, sequential: false, apply_chat_template: true, policy: "constant", num_assistant_tokens: 4, engine: "traced", drafter: "model", do_sample: false },
    plain: side(1, 1, 1), speculative: { ...side(), rounds: [round(2, [" b", " c", " d"], 2, ["?"])] }, summary: { ...SUMMARY, ...said }, ...changed,
  };
}
