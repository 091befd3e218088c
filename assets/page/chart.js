// A Plotly chart that is extended, never redrawn: zoom survives, and nothing is reallocated.

import { LiveChart } from "./live_chart.js";
import { Plotly } from "./plotly.js";

/** @typedef {import("./live_chart.js").Figure} Figure */

const REDRAW_MS = 100; // at most ten times a second
const REST = 15; // idle at least this many times as long as a drawing took: the engine may need the processor
const LATEST_MS = 600; // but not later than this
/** Plotly's toolbar would otherwise offer to upload the chart to Plotly's cloud. */
const PRIVATE = { displaylogo: false, showSendToCloud: false, plotlyServerURL: "" };

export class Chart extends LiveChart {
  /**
   * @param {HTMLElement} element
   * @param {Figure} figure
   */
  constructor(element, figure) {
    super(element, figure);
    /** @type {ReturnType<typeof setTimeout> | undefined} */ this.timer = undefined;
    /** @type {ReturnType<typeof setTimeout> | undefined} */ this.redrawing = undefined;
    this.took = 0; // milliseconds of the last drawing
    const [data, layout] = this.painted();
    this.ready = Plotly.newPlot(element, data, layout, PRIVATE);
  }

  /** @param {string} run */
  reset(run) {
    clearTimeout(this.timer);
    this.timer = undefined;
    super.reset(run);
  }

  appendSoon() {
    this.timer ??= setTimeout(() => this.flush(), Math.min(Math.max(REDRAW_MS, REST * this.took), LATEST_MS));
  }

  flush() {
    clearTimeout(this.timer);
    this.timer = undefined;
    if (this.redrawing !== undefined) this.redraw();
    const pending = super.flush();
    if (!pending) return null;
    const began = performance.now();
    const update = { x: pending.map(({ x }) => x), y: pending.map(({ y }) => y) };
    Plotly.extendTraces(this.element, update, pending.map((_, index) => index));
    this.took = performance.now() - began;
    return pending;
  }

  /** Each chart in a task of its own, so that none of them is long. */
  redrawSoon() {
    this.redrawing ??= setTimeout(() => this.redraw());
  }

  redraw() {
    clearTimeout(this.redrawing);
    this.redrawing = undefined;
    const [data, layout] = this.painted();
    const traces = data.map((trace, index) => ({ ...trace, x: [...this.points[index].x], y: [...this.points[index].y] }));
    Plotly.react(this.element, traces, layout, PRIVATE);
  }

  /** Draw again in the new colours. */
  repaint() {
    const shapes = this.layout?.shapes; // such as the anatomy's current round, which the figure does not hold
    this.flush();
    this.redraw();
    if (shapes && !this.marks.length && !this.figure.layout.shapes) Plotly.relayout(this.element, { shapes });
  }

  /** Fit to the element's size; in a hidden tab it has none. */
  async resize() {
    if (!this.element.offsetWidth) return;
    await Plotly.Plots.resize(this.element);
    const { legend, showlegend } = this.figure.layout;
    if (legend && showlegend !== false) Plotly.relayout(this.element, { "legend.y": legend.y }); // otherwise it stays where a taller legend put it
  }

  /** Change what Plotly shows, such as the range of an axis. @param {object} update */
  relayout(update) {
    return Plotly.relayout(this.element, update);
  }

  /** The layout that Plotly shows now. @returns {any} */
  get layout() {
    return /** @type {any} */ (this.element).layout;
  }

  /** The figure with its colours and marks; `uirevision` keeps the reader's zoom within a run. @returns {[any[], any]} */
  painted() {
    const figure = JSON.parse(this.resolve(JSON.stringify(this.figure)));
    const family = getComputedStyle(this.element).fontFamily;
    const marks = this.marks.length ? this.marked() : {};
    return [figure.data, { ...figure.layout, ...marks, font: { ...figure.layout.font, family }, uirevision: this.run }];
  }

  /** The marks as Plotly's shapes and annotations. */
  marked() {
    const [ink, card] = ["var(--sd-ink)", "var(--sd-card)"].map((colour) => this.resolve(colour));
    const line = { color: ink, width: 1, dash: "dot" };
    return {
      shapes: this.marks.map(({ x }) => ({ type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line })),
      annotations: this.marks.map(({ x, text }) => ({
        x, y: 1, yref: "paper", yanchor: "top", xanchor: "left", text, showarrow: false, font: { color: ink, size: 11 }, bgcolor: card,
      })),
    };
  }
}
