// Charts: Plotly's figures from `specdemo/results/figures.py`, in the colours of the page. Those that grow during a race
// get their data here, from its rounds. Replays and reports contain this file, too.

import { unpack } from "./files.js";

/** @typedef {import("./rounds.js").Timed} Timed */
/** @typedef {import("./rounds.js").SideName} SideName */
/** @typedef {{ data: any[], layout: any }} Figure in the light scheme's colours, without the template */
/** @typedef {{ script: string, colours: Record<string, string>, template: any, config: any, charts: Record<string, Figure> }} PageCharts */
/** @typedef {{ round: number, label: string }} SettingsUpdate */

const [REDRAW_MS, BUSY_MS] = [250, 1000]; // between drawings; while an engine on this machine may compute, at most BUSY_MS
const IDLE_FACTOR = 40; // then, idle this many times as long as a drawing took
const NARROW = 420; // pixels; narrower charts have a legend instead of axis titles
const touch = matchMedia("(pointer: coarse)"); // a finger scrolls the page, and a tap names values

/** @param {Timed} timed @returns {Record<string, number | null>} as `columns` in `figures.py`; null or missing: nothing to draw */
export function columns({ round: { seconds, draft_seconds, verify_seconds, proposed: proposals }, number, ms, tokens, accepted, proposed, alpha }) {
  const [whole, draft, verify] = [seconds, draft_seconds, verify_seconds].map((duration) => 1000 * (duration ?? 0));
  const copied = proposals?.filter((proposal) => proposal.copied).length || null;
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
    const page = JSON.parse(document.querySelector("#charts")?.textContent ?? (await (await fetch(new URL("specdemo/charts.json", document.baseURI))).text()));
    if (packed) document.head.append(Object.assign(document.createElement("script"), { textContent: await unpack(packed.textContent ?? "") }));
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
    /** @type {any} */ this.plot = element.appendChild(document.createElement("div"));
    this.numbers = element.appendChild(Object.assign(document.createElement("div"), { className: "menu scroll", popover: "auto" }));
    const opener = element.appendChild(Object.assign(document.createElement("button"), { type: "button", className: "numbers", textContent: "Numbers" }));
    opener.popoverTargetElement = this.numbers;
    this.numbers.addEventListener("beforetoggle", () => this.numbers.replaceChildren(this.table()));
    for (const kind of ["touchstart", "touchmove"]) element.addEventListener(kind, (event) => { event.preventDefault = () => {}; }, { capture: true, passive: true }); // otherwise Plotly prevents scrolling
    new ResizeObserver(() => this.draw()).observe(element);
    new MutationObserver(() => this.draw()).observe(document.body, { attributeFilter: ["class"] });
  }

  /** Show a figure; its zoom is kept as long as `run` is the same. @param {Figure} figure */
  show(figure, run = "") {
    Object.assign(this, { figure, run });
    this.drawSoon();
  }

  /** Show the rounds of both sides so far. @param {Record<SideName, Timed[]>} sides @param {SettingsUpdate[]} updates @param {string} run @param {boolean} busy */
  grow(sides, updates, run, busy) {
    Object.assign(this, { run, busy, fill: (/** @type {Figure} */ figure) => filled(figure, sides, updates) });
    this.drawSoon();
  }

  drawSoon() {
    this.timer ??= setTimeout(() => this.draw(), this.busy ? Math.min(Math.max(REDRAW_MS, IDLE_FACTOR * this.drawingMs), BUSY_MS) : REDRAW_MS);
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
    const { data, layout } = figure, config = { ...page.config, ...(touch.matches && { displayModeBar: false }) };
    this.plot.setAttribute("role", "group");
    this.plot.ariaLabel = `${titleOf(layout.yaxis)} by ${titleOf(layout.xaxis)}: ${data.map(({ name }) => name).join(", ")}`;
    this.xTitle = titleOf(layout.xaxis);
    if (this.element.classList.toggle("narrow", width < NARROW && layout.showlegend !== false)) {
      for (const axis of ["xaxis", "yaxis"]) layout[axis] = { ...layout[axis], title: { text: "" } };
      Object.assign(layout, { legend: { y: 0, yanchor: "bottom", font: { size: 10 }, indentation: -6 }, margin: { ...layout.margin, l: 32 } });
    }
    const fixed = touch.matches ? { dragmode: false, xaxis: { ...layout.xaxis, fixedrange: true }, yaxis: { ...layout.yaxis, fixedrange: true } } : {};
    const full = { ...layout, ...fixed, template: coloured(page.template, page), width, height, uirevision: this.run };
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
      full.annotations = [{ x: 0.5, y: 0.5, xref: "paper", yref: "paper", xanchor: "center", text: "Appears as the race goes on." }];
      full.showlegend = false;
    }
    await Plotly.react(this.plot, data, full, config);
    this.drawingMs = performance.now() - start;
  }

  /** The drawn numbers, with a row for each x. */
  table() {
    const { data = [] } = this.plot;
    /** @type {Map<any, any[]>} */ const rows = new Map();
    data.forEach((/** @type {any} */ { x = [], y = [] }, /** @type {number} */ index) => x.forEach((/** @type {any} */ at, /** @type {number} */ number) => {
      rows.set(at, Object.assign(rows.get(at) ?? [], { [index]: y[number] }));
    }));
    const text = (/** @type {any} */ value) => (typeof value === "number" ? String(Number(value.toPrecision(4))) : value ?? "");
    const names = data.map((/** @type {any} */ { name }) => name);
    return table([this.xTitle, ...names], [...rows].sort(([a], [b]) => a - b).map(([at, values]) => [at, ...names.map((/** @type {any} */ _, /** @type {number} */ index) => values[index])].map(text)));
  }
}

/** Fill each trace from the columns that it names, and mark changed settings. @param {Figure} figure @param {Record<SideName, Timed[]>} sides @param {SettingsUpdate[]} updates */
function filled({ data, layout }, sides, updates) {
  const rows = { plain: sides.plain.map(columns), speculative: sides.speculative.map(columns) };
  for (const trace of data) {
    const { side, x, y } = trace.meta, known = rows[/** @type {SideName} */ (side)].filter((row) => (row[x] ?? null) !== null && (row[y] ?? null) !== null);
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
  const now = new Map(Object.entries(colours).flatMap(([name, light]) => [light, `var(--sd-${name})`].map((written) => [written, style.getPropertyValue(`--sd-${name}`).trim()])));
  return JSON.parse(JSON.stringify(figure), (_, value) => now.get(value) ?? value);
}

/** @param {any} axis */
const titleOf = (axis) => axis?.title?.text ?? "";

/** @param {string[]} names @param {string[][]} rows */
export function table(names, rows) {
  const element = document.createElement("table"), [head, body] = [element.createTHead().insertRow(), element.createTBody()];
  head.append(...names.map((textContent) => Object.assign(document.createElement("th"), { textContent })));
  for (const row of rows) {
    const line = body.insertRow();
    for (const text of row) line.insertCell().textContent = text;
  }
  return element;
}

/** Follow the reader's colour scheme, as Gradio's page does by itself. */
export function followScheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)"), darken = () => document.body.classList.toggle("dark", dark.matches);
  dark.addEventListener("change", darken);
  darken();
}
