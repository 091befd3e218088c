// Charts: Plotly's figures from `specdemo/results/figures.py`, in the colours of the page. Those that grow during a race
// get their data here, from its rounds. Replays and reports contain this file, too.

import { unpack } from "./files.js";
import { marked } from "./glossary.js";
import { make } from "./rounds.js";

const REDRAW_MS = 250; // between drawings
const BUSY_MS = 1000; // at most, while an engine on this machine may compute
const IDLE_FACTOR = 40; // then, idle this many times as long as a drawing took
const NARROW = 420; // pixels; narrower charts have a legend instead of axis titles
const touch = matchMedia("(pointer: coarse)"); // a finger scrolls the page, and a tap names values

/** As `columns` in `figures.py`; null or missing: nothing to draw. @param {Timed} timed @returns {Record<string, number | null>} */
export function columns({ round, number, ms, tokens, accepted, proposed, alpha }) {
  const times = [round.seconds, round.draft_seconds, round.verify_seconds];
  const [whole, draft, verify] = times.map((seconds) => 1000 * (seconds ?? 0));
  const copied = round.proposed?.filter((proposal) => proposal.copied).length || null;
  return {
    round: number || null, seconds: ms / 1000, tokens, step: whole,
    ...(number && proposed !== null && { accepted, unaccepted: proposed - accepted, alpha, copied }),
    ...(draft || verify ? { draft, verify, rest: Math.max(whole - draft - verify, 0) } : { whole }),
  };
}

/** @type {Promise<{ Plotly: any, page: PageCharts }> | undefined} */ let loading;

/** Plotly and the page's charts, from this file, or from the server once the page has been painted. */
function load() {
  const packed = document.querySelector("#plotly");
  loading ??= (async () => {
    if (!packed) await new Promise((done) => requestIdleCallback(done, { timeout: 2000 }));
    const charts = document.querySelector("#charts")?.textContent;
    const page = charts ? JSON.parse(charts) : await (await fetch(new URL("specdemo/charts.json", document.baseURI))).json();
    if (packed) document.head.append(make("script", await unpack(packed.textContent ?? "")));
    else await import(new URL(page.script, document.baseURI).href);
    return { Plotly: /** @type {any} */ (globalThis).Plotly, page };
  })();
  return loading;
}

export class Chart {
  /** @param {HTMLElement} element @param {string} [name] of one of the page's charts */
  constructor(element, name) {
    this.element = element;
    this.name = name;
    /** @type {Figure | null} */ this.figure = null;
    this.run = ""; // a chart keeps its zoom within a run
    this.busy = false; // an engine may compute
    this.drawingMs = 0; // duration of the last drawing
    this.xTitle = "";
    this.lastDrawing = ""; // not repeated, which would hide the values that a tap has shown
    /** @type {ReturnType<typeof setTimeout> | undefined} */ this.timer = undefined;
    /** @type {(figure: Figure) => void} */ this.fill = () => {}; // adds the data to one of the page's charts
    /** @type {any} */ this.plot = element.appendChild(make("div"));
    const numbers = Object.assign(make("div", "", "menu scroll"), { popover: "auto" });
    numbers.addEventListener("beforetoggle", () => numbers.replaceChildren(this.table()));
    const opener = Object.assign(make("button", "Numbers", "numbers"), { type: "button", popoverTargetElement: numbers });
    element.append(numbers, opener);
    for (const kind of ["touchstart", "touchmove"]) { // otherwise Plotly prevents scrolling
      const unpreventable = (/** @type {Event} */ event) => { event.preventDefault = () => {}; };
      element.addEventListener(kind, unpreventable, { capture: true, passive: true });
    }
    new ResizeObserver(() => this.draw()).observe(element);
    new MutationObserver(() => this.draw()).observe(document.body, { attributeFilter: ["class"] });
  }

  /** Show a figure; its zoom is kept as long as `run` is the same. @param {Figure} figure */
  show(figure, run = "") {
    Object.assign(this, { figure, run });
    this.drawSoon();
    return this.element;
  }

  /** Show the rounds of both sides so far. @param {Sides} sides @param {SettingsUpdate[]} updates @param {string} run @param {boolean} busy */
  grow(sides, updates, run, busy) {
    Object.assign(this, { run, busy, fill: (/** @type {Figure} */ figure) => filled(figure, sides, updates) });
    this.drawSoon();
  }

  drawSoon() {
    const wait = this.busy ? Math.min(IDLE_FACTOR * this.drawingMs, BUSY_MS) : 0;
    this.timer ??= setTimeout(() => this.draw(), Math.max(wait, REDRAW_MS));
  }

  async draw() {
    clearTimeout(this.timer);
    this.timer = undefined;
    const loaded = await load().catch(() => null);
    const { offsetWidth: width, offsetHeight: height } = this.element;
    if (!loaded) this.plot.textContent = "The charts could not be loaded; reload the page.";
    if (!loaded || !width || !height || !(this.figure ?? this.name)) return;
    const { Plotly, page } = loaded;
    const start = performance.now();
    const figure = coloured(this.figure ?? page.charts[this.name ?? ""], page);
    this.fill(figure);
    const { data, layout } = figure;
    this.xTitle = titleOf(layout.xaxis);
    this.plot.setAttribute("role", "group");
    this.plot.ariaLabel = `${titleOf(layout.yaxis)} by ${this.xTitle}: ${data.map(({ name }) => name).join(", ")}`;
    if (this.element.classList.toggle("narrow", width < NARROW && layout.showlegend !== false)) {
      for (const axis of ["xaxis", "yaxis"]) layout[axis] = { ...layout[axis], title: { text: "" } };
      layout.legend = { y: 0, yanchor: "bottom", font: { size: 10 }, indentation: -6 };
      layout.margin = { ...layout.margin, l: 32 };
    }
    const full = { ...layout, template: coloured(page.template, page), width, height, uirevision: this.run };
    if (touch.matches) {
      full.dragmode = false;
      for (const axis of ["xaxis", "yaxis"]) full[axis] = { ...full[axis], fixedrange: true };
    }
    if (document.body.classList.contains("presenting")) { // read in the last row
      const font = { size: 18 };
      for (const axis of ["xaxis", "yaxis", "yaxis2"]) full[axis] = { ...full[axis], title: { ...full[axis]?.title, font } };
      Object.assign(full, { font, legend: { ...full.legend, font }, margin: { l: 80, r: 70, t: 44, b: 60 } });
    }
    const drawing = JSON.stringify([data, full]);
    if (drawing === this.lastDrawing) return;
    this.lastDrawing = drawing;
    if (data.every(({ x }) => !x.length)) { // words instead of empty axes; lines of the last run would stay
      Plotly.purge(this.plot);
      for (const axis of ["xaxis", "yaxis", "yaxis2"]) full[axis] = { ...full[axis], visible: false };
      const text = "Appears as the race goes on.";
      full.annotations = [{ x: 0.5, y: 0.5, xref: "paper", yref: "paper", xanchor: "center", text }];
      full.showlegend = false;
    }
    await Plotly.react(this.plot, data, full, touch.matches ? { ...page.config, displayModeBar: false } : page.config);
    this.drawingMs = performance.now() - start;
  }

  /** The drawn numbers, with a row for each x. */
  table() {
    /** @type {{ name: string, x?: any[], y?: any[] }[]} */ const data = this.plot.data ?? [];
    const all = [...new Set(data.flatMap(({ x = [] }) => [...x]))].sort((a, b) => a - b);
    const rows = all.map((at) => [at, ...data.map(({ x = [], y = [] }) => y[x.lastIndexOf(at)])].map((value) => {
      return typeof value === "number" ? String(Number(value.toPrecision(4))) : value ?? "";
    }));
    return table([this.xTitle, ...data.map(({ name }) => name)], rows);
  }
}

/** Fill each trace from the columns that it names, and mark changes. @param {Figure} figure @param {Sides} sides @param {SettingsUpdate[]} updates */
function filled({ data, layout }, sides, updates) {
  const rows = { plain: sides.plain.map(columns), speculative: sides.speculative.map(columns) };
  for (const trace of data) {
    /** @type {{ side: SideName, x: string, y: string }} */ const { side, x, y } = trace.meta;
    const known = rows[side].filter((row) => [row[x], row[y]].every((value) => (value ?? null) !== null));
    Object.assign(trace, { x: known.map((row) => row[x]), y: known.map((row) => row[y]) });
  }
  const applied = updates.filter(({ round }) => round < rows.speculative.length);
  const places = applied.map(({ round }) => (data[0].meta.x === "seconds" ? rows.speculative[round - 1].seconds : round - 0.5));
  layout.shapes = places.map((x) => ({ x0: x, x1: x, y0: 0, y1: 1, yref: "paper" }));
  layout.annotations = applied.map(({ label }, index) => ({ x: places[index], y: 1, yref: "paper", text: label }));
}

/** The figure with the colours of the light scheme replaced by those of the page. @template T @param {T} figure @param {PageCharts} page @returns {T} */
function coloured(figure, { colours }) {
  const style = getComputedStyle(document.body);
  const now = new Map(Object.entries(colours).flatMap(([name, light]) => {
    const colour = style.getPropertyValue(`--sd-${name}`).trim();
    return [[light, colour], [`var(--sd-${name})`, colour]];
  }));
  return JSON.parse(JSON.stringify(figure), (_, value) => now.get(value) ?? value);
}

/** @param {any} axis */
const titleOf = (axis) => axis?.title?.text ?? "";

/** @param {string[]} names @param {string[][]} rows */
export function table(names, rows) {
  const element = document.createElement("table");
  const [head, body] = [element.createTHead().insertRow(), element.createTBody()];
  head.append(...names.map((name) => marked(make("th", name))));
  for (const row of rows) body.insertRow().append(...row.map((text) => make("td", text)));
  return element;
}

/** Follow the reader's colour scheme, as Gradio's page does by itself. */
export function followScheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const darken = () => document.body.classList.toggle("dark", dark.matches);
  dark.addEventListener("change", darken);
  darken();
}
