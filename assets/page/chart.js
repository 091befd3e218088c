// A Plotly chart that is extended, never redrawn: zoom survives, and nothing is reallocated.

const REDRAW_MS = 100; // at most ten times a second
const REST = 15; // and at least this many times as long at rest as at work: the engine may need the processor
const LATEST_MS = 600; // but not later than this

class Chart {
  constructor(element, figure) {
    this.element = element;
    this.figure = figure;
    this.ready = Plotly.newPlot(element, ...this.painted(), { displaylogo: false });
    new ResizeObserver(() => this.resize()).observe(element);
    new MutationObserver(() => this.repaint()).observe(document.body, { attributeFilter: ["class"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.repaint());
    this.reset("");
  }

  reset(run) {
    this.run = run;
    this.points = this.figure.data.map(() => ({ x: [], y: [] }));
    this.pending = null;
    this.marks = [];
    clearTimeout(this.timer);
    this.timer = null;
    this.soon();
  }

  // Points for each trace, as [[x, y], …]; drawn soon.
  add(traces) {
    this.pending ??= this.figure.data.map(() => ({ x: [], y: [] }));
    traces.forEach((points, index) => {
      for (const [x, y] of points) {
        this.pending[index].x.push(x);
        this.pending[index].y.push(y);
      }
    });
    this.timer ??= setTimeout(() => this.flush(), Math.min(Math.max(REDRAW_MS, REST * (this.took ?? 0)), LATEST_MS));
  }

  // A vertical line with a word at the top.
  mark(x, text) {
    this.marks.push([x, text]);
    Plotly.relayout(this.element, this.marked(getComputedStyle(this.element)));
  }

  marked(style) {
    const [ink, card] = ["--sd-ink", "--sd-card"].map((name) => style.getPropertyValue(name).trim());
    const line = { color: ink, width: 1, dash: "dot" };
    return {
      shapes: this.marks.map(([x]) => ({ type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line })),
      annotations: this.marks.map(([x, text]) => ({
        x, y: 1, yref: "paper", yanchor: "top", xanchor: "left", text, showarrow: false, font: { color: ink, size: 11 }, bgcolor: card,
      })),
    };
  }

  flush() {
    clearTimeout(this.timer);
    this.timer = null;
    const { pending } = this;
    this.pending = null;
    if (this.redrawing) this.redraw();
    if (!pending) return;
    pending.forEach(({ x, y }, index) => {
      this.points[index].x.push(...x);
      this.points[index].y.push(...y);
    });
    const began = performance.now();
    const update = { x: pending.map(({ x }) => x), y: pending.map(({ y }) => y) };
    Plotly.extendTraces(this.element, update, pending.map((_, index) => index));
    this.took = performance.now() - began;
  }

  // Another figure, with its data.
  show(figure) {
    this.figure = figure;
    this.points = figure.data.map(({ x = [], y = [] }) => ({ x, y }));
    this.soon();
  }

  // Each chart in a task of its own, so that none of them is long.
  soon() {
    this.redrawing ??= setTimeout(() => this.redraw());
  }

  redraw() {
    clearTimeout(this.redrawing);
    this.redrawing = null;
    const [data, layout] = this.painted();
    const traces = data.map((trace, index) => ({ ...trace, x: [...this.points[index].x], y: [...this.points[index].y] }));
    Plotly.react(this.element, traces, layout);
  }

  repaint() {
    const shapes = this.element.layout?.shapes; // such as the anatomy's current round, which the figure does not hold
    this.flush();
    this.redraw();
    if (shapes && !this.marks.length && !this.figure.layout.shapes) Plotly.relayout(this.element, { shapes });
  }

  // To its element's size; one in a hidden tab has none.
  async resize() {
    if (!this.element.offsetWidth) return;
    await Plotly.Plots.resize(this.element);
    const { legend, showlegend } = this.figure.layout;
    if (legend && showlegend !== false) Plotly.relayout(this.element, { "legend.y": legend.y }); // else it stays where more lines put it
  }

  // The figure with the style sheet's variables resolved; `uirevision` keeps the reader's zoom within a run.
  painted() {
    const style = getComputedStyle(this.element);
    const resolve = (text) => text.replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
    const figure = JSON.parse(resolve(JSON.stringify(this.figure)));
    const family = style.fontFamily;
    return [figure.data, { ...figure.layout, ...(this.marks?.length ? this.marked(style) : {}), font: { ...figure.layout.font, family }, uirevision: this.run ?? "" }];
  }
}
