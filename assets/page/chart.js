// One chart on a canvas: lines, steps, bars (grouped or stacked), intervals, a second axis. It reads the part of Plotly's
// figure format that it draws. Points can be added while a run plays; hovering names the values.
// No imports: a report holds this file as it is.

/** @typedef {{ data: any[], layout: any }} Figure colours name variables of the style sheet */
/** @typedef {[x: number | string, y: number | null]} Point */
/** @typedef {[number, number]} Range */

const MARGIN = { left: 46, right: 16, top: 12, bottom: 36, second: 26, legend: 22 };
const TICKS = 5;
const GROUP = 0.84; // width of a group of bars, as a share of the distance between groups
const REDRAW_MS = 100; // at most ten drawings a second: the engine may need the processor
const TAP_MS = 4000; // for which a tapped point stays named: a finger leaves at once
const NEAR = 40; // pixels from the pointer within which a point is named

export class Chart {
  /** @param {HTMLElement} element @param {Figure} figure */
  constructor(element, figure = { data: [], layout: {} }) {
    this.element = element;
    this.figure = figure;
    /** @type {Point[][]} */ this.points = [];
    /** @type {{ x: number, text: string }[]} */ this.marks = []; // vertical lines with a word
    this.canvas = element.appendChild(document.createElement("canvas"));
    this.canvas.setAttribute("role", "img");
    this.canvas.style.cssText = "position: absolute; inset: 0; width: 100%; height: 100%";
    this.tip = element.appendChild(Object.assign(document.createElement("div"), { className: "chart-tip", hidden: true }));
    this.pen = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    this.style = getComputedStyle(element);
    this.box = { x: 0, y: 0, width: 1, height: 1 };
    this.span = { x: /** @type {Range} */ ([0, 1]), y: 1, y2: 1 };
    /** @type {any[] | null} */ this.names = null; // on the x axis
    /** @type {ReturnType<typeof setTimeout> | undefined} */ this.timer = undefined;
    new ResizeObserver(() => this.flush()).observe(element);
    new MutationObserver(() => this.redrawSoon()).observe(document.body, { attributeFilter: ["class"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redrawSoon());
    for (const kind of /** @type {const} */ (["pointermove", "pointerdown"])) this.canvas.addEventListener(kind, ({ offsetX, offsetY }) => this.hover(offsetX, offsetY));
    this.canvas.addEventListener("pointerleave", ({ pointerType }) => setTimeout(() => { this.tip.hidden = true; }, pointerType === "touch" ? TAP_MS : 0));
    this.show(figure);
  }

  /** Show another figure with its data. @param {Figure} figure */
  show(figure) {
    this.figure = figure;
    this.marks = [];
    this.points = figure.data.map(({ x = [], y = [] }) => x.map((/** @type {any} */ at, /** @type {number} */ index) => [at, y[index]]));
    this.redrawSoon();
  }

  /** Clear the data for another run. */
  reset() {
    this.points = this.figure.data.map(() => []);
    this.marks = [];
    this.redrawSoon();
  }

  /** Add points to each trace. @param {Point[][]} traces */
  add(traces) {
    traces.forEach((points, index) => this.points[index].push(...points));
    this.redrawSoon();
  }

  /** Add a vertical line with a word at the top. @param {number} x @param {string} text */
  mark(x, text) {
    this.marks.push({ x, text });
    this.redrawSoon();
  }

  redrawSoon() {
    this.timer ??= setTimeout(() => this.flush(), REDRAW_MS);
  }

  flush() {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.redraw();
  }

  // The pointer

  /** Name the values nearest to the pointer. @param {number} x @param {number} y */
  hover(x, y) {
    const found = this.figure.data.flatMap((trace, index) => {
      if (trace.hoverinfo === "skip") return [];
      const near = this.points[index].map(([at, value], number) => ({ at, value, number, far: Math.abs(this.place(at, 0)[0] - x) }))
        .filter(({ value }) => value !== null).sort((one, other) => one.far - other.far)[0];
      return near && near.far < NEAR ? [{ ...near, text: trace.text?.[near.number] ?? label(Number(near.value)), name: trace.name ?? "" }] : [];
    });
    const nearest = Math.min(...found.map(({ far }) => far));
    const lines = found.filter(({ far }) => far <= nearest + 1);
    this.tip.textContent = lines.length ? [`${title(this.figure.layout.xaxis)} ${this.names ? String(lines[0].at) : label(Number(lines[0].at))}`.trim(),
      ...lines.map(({ name, text }) => [name, text].filter(Boolean).join(": "))].join("\n") : "";
    this.tip.hidden = !this.tip.textContent;
    this.tip.style.left = `${Math.min(x + 12, this.element.offsetWidth - this.tip.offsetWidth - 4)}px`;
    this.tip.style.top = `${Math.max(y - this.tip.offsetHeight - 8, 0)}px`;
  }

  // Drawing

  redraw() {
    const { canvas, element: { offsetWidth: width, offsetHeight: height }, pen } = this;
    if (!width || !height || !pen) return;
    Object.assign(canvas, { width: width * devicePixelRatio, height: height * devicePixelRatio });
    const { data, layout } = this.figure;
    const named = data.filter(({ name, showlegend }) => name && showlegend !== false).map(({ name }) => name);
    canvas.setAttribute("aria-label", `${title(layout.yaxis)} by ${title(layout.xaxis) || "kind"}: ${named.join(", ")}`);
    pen.scale(devicePixelRatio, devicePixelRatio);
    pen.font = `12px ${this.style.fontFamily}`;
    const legend = layout.showlegend === false || named.length < 2 ? 0 : MARGIN.legend;
    const right = MARGIN.right + (layout.yaxis2 ? MARGIN.second : 0);
    this.box = { x: MARGIN.left, y: MARGIN.top + legend, width: width - MARGIN.left - right, height: height - MARGIN.top - MARGIN.bottom - legend };
    this.measure();
    this.axes();
    if (legend) this.legend(named);
    pen.save();
    pen.beginPath();
    pen.rect(this.box.x, 0, this.box.width + 2, height);
    pen.clip();
    const stack = new Map();
    data.forEach((trace, index) => { if (trace.type === "bar") this.bars(trace, index, stack); });
    data.forEach((trace, index) => { if (trace.type !== "bar") this.line(trace, this.points[index]); });
    for (const shape of layout.shapes ?? []) this.shape(shape);
    for (const { x, text } of this.marks) this.marked(x, text);
    pen.restore();
  }

  /** Measure the axes' ranges; names on the x axis are at 0.5, 1.5, … */
  measure() {
    const { data, layout } = this.figure;
    const all = this.points.flat();
    this.names = all.some(([x]) => typeof x === "string") ? [...new Set(all.map(([x]) => x))] : null;
    const bars = data.some(({ type }) => type === "bar");
    const end = this.names ? this.names.length : (all.reduce((most, [x]) => Math.max(most, Number(x)), 0) || 1) + (bars && !layout.xaxis?.range ? 0.5 : 0);
    this.span.x = layout.xaxis?.range ?? [0, end];
    this.span.y2 = layout.yaxis2?.range?.[1] ?? 1;
    let most = Math.max(0, ...(layout.shapes ?? []).map((/** @type {any} */ { y0 }) => y0));
    const stack = new Map();
    data.forEach((trace, index) => {
      if (trace.yaxis === "y2") return;
      this.points[index].forEach(([x, y], at) => {
        const stacked = trace.type === "bar" && layout.barmode === "stack";
        const top = stacked ? (stack.get(x) ?? 0) + y : (y ?? 0) + (trace.error_y?.array?.[at] ?? 0);
        if (stacked) stack.set(x, top);
        most = Math.max(most, top);
      });
    });
    this.span.y = layout.yaxis?.range?.[1] ?? (most || 1);
  }

  /** @param {any} x @param {number} y @param {"y" | "y2"} axis @returns {[number, number]} */
  place(x, y, axis = "y") {
    const { box, span: { x: [from, to] } } = this;
    const at = this.names?.includes(x) ? this.names.indexOf(x) + 0.5 : x;
    return [box.x + (box.width * (at - from)) / (to - from), box.y + box.height * (1 - y / this.span[axis])];
  }

  /** @param {any} trace @param {number} index @param {Map<any, number>} stack */
  bars(trace, index, stack) {
    const stacked = this.figure.layout.barmode === "stack";
    const groups = stacked ? [index] : this.figure.data.flatMap(({ type }, number) => (type === "bar" ? [number] : []));
    const unit = this.place(trace.width ?? 1, 0)[0] - this.place(0, 0)[0];
    const width = (GROUP * unit) / groups.length;
    this.points[index].forEach(([x, y], at) => {
      if (y === null) return;
      const base = stacked ? stack.get(x) ?? 0 : 0;
      const [middle, top] = this.place(x, base + y);
      const left = middle - (GROUP * unit) / 2 + groups.indexOf(index) * width;
      this.pen.fillStyle = this.resolve(trace.marker.color);
      this.pen.fillRect(left, top, Math.max(width - 1, 1), this.place(x, base)[1] - top);
      if (stacked) stack.set(x, base + y);
      this.interval(trace.error_y, at, y, left + width / 2);
    });
  }

  /** @param {any} spread @param {number} at @param {number} y @param {number} left */
  interval(spread, at, y, left) {
    const above = spread?.array?.[at];
    if (!above) return;
    const ends = [y - (spread.arrayminus?.[at] ?? above), y + above];
    this.stroke({ color: spread.color ?? "var(--sd-mute)", width: 1.5 }, ends.map((end) => [left, this.place(0, end)[1]]));
  }

  /** Draw a line across the whole chart; with names on the x axis, its x counts them from 0. @param {any} shape */
  shape({ x0, x1, y0, y1, line }) {
    const [from, to] = this.span.x;
    if (x0 !== x1) return this.stroke(line, [this.place(from, y0), this.place(to, y0)]);
    const x = this.names ? x0 + 0.5 : x0;
    this.stroke(line, [y0, y1].map((share) => this.place(x, share * this.span.y)));
  }

  /** @param {number} x @param {string} text */
  marked(x, text) {
    const [left, bottom] = this.place(x, 0);
    this.stroke({ color: "var(--sd-ink)", width: 1, dash: "dot" }, [[left, bottom], [left, this.box.y]]);
    this.write(text, left + 3, this.box.y + 10, "left");
  }

  /** @param {any} trace @param {Point[]} all */
  line({ line, marker, mode = "lines", yaxis, error_y: spread, text }, all) {
    const points = all.filter(([, y]) => y !== null && y !== undefined);
    const places = points.map(([x, y]) => this.place(x, Number(y), yaxis));
    const corners = places.flatMap(([x, y], index) => (index && line?.shape === "hv" ? [[x, places[index - 1][1]], [x, y]] : [[x, y]]));
    if (mode.includes("lines")) this.stroke(line, /** @type {any} */ (corners));
    if (!mode.includes("markers")) return;
    points.forEach(([, y], index) => {
      const [x, top] = places[index];
      this.interval(spread, index, Number(y), x);
      if (mode.includes("text")) this.write(text[index], x, top - 8, "center");
      this.pen.fillStyle = this.resolve(line?.color ?? marker.color);
      this.pen.beginPath();
      this.pen.arc(x, top, 3, 0, 2 * Math.PI);
      this.pen.fill();
    });
  }

  /** @param {{ color: string, width?: number, dash?: string }} style @param {[number, number][]} corners */
  stroke({ color, width = 2, dash = "" }, corners) {
    const { pen } = this;
    pen.strokeStyle = this.resolve(color);
    pen.lineWidth = width;
    pen.setLineDash(dash === "dot" ? [2, 3] : dash === "dash" ? [6, 4] : []);
    pen.beginPath();
    for (const [x, y] of corners) pen.lineTo(x, y);
    pen.stroke();
    pen.setLineDash([]);
  }

  axes() {
    const { pen, box, span, figure: { layout } } = this;
    for (const y of ticks(0, span.y)) {
      const [, top] = this.place(span.x[0], y);
      this.stroke({ color: "var(--sd-line)", width: 1 }, [[box.x, top], [box.x + box.width, top]]);
      this.write(label(y), box.x - 6, top + 4, "right");
    }
    const places = this.names?.map((name) => [name, name]) ?? ticks(...span.x, layout.xaxis?.dtick).map((x) => [label(x), x]);
    for (const [text, x] of places) this.write(text, this.place(x, 0)[0], box.y + box.height + 16, "center");
    this.write(title(layout.xaxis), box.x + box.width / 2, box.y + box.height + 31, "center");
    for (const y of layout.yaxis2?.tickvals ?? []) this.write(label(y), box.x + box.width + 6, this.place(0, y, "y2")[1] + 4, "left");
    if (layout.yaxis2) this.write(title(layout.yaxis2), box.x + box.width + 28, box.y + box.height * 0.25, "left");
    pen.save();
    pen.translate(12, box.y + box.height / 2);
    pen.rotate(-Math.PI / 2);
    this.write(title(layout.yaxis), 0, 0, "center");
    pen.restore();
  }

  /** @param {string[]} named */
  legend(named) {
    let left = this.box.x;
    for (const name of named) {
      const { marker, line } = this.figure.data.find((trace) => trace.name === name);
      this.pen.fillStyle = this.resolve(marker?.color ?? line.color);
      this.pen.fillRect(left, 6, 12, 12);
      this.write(name, left + 17, 16, "left");
      left += 36 + this.pen.measureText(name).width;
    }
  }

  /** @param {string} text @param {number} x @param {number} y @param {CanvasTextAlign} align */
  write(text, x, y, align) {
    this.pen.fillStyle = this.resolve("var(--sd-mute)");
    this.pen.textAlign = align;
    this.pen.fillText(text, x, y);
  }

  /** A colour with the style sheet's variable replaced by its value here. @param {string} text */
  resolve(text) {
    return text.replace(/var\((--[\w-]+)\)/g, (_, name) => this.style.getPropertyValue(name).trim());
  }
}

/** @param {any} axis */
const title = (axis) => axis?.title?.text ?? axis?.title ?? "";
/** @param {number} value */
const label = (value) => String(Number(value.toPrecision(3)));

/** Round numbers in a range. @param {number} from @param {number} to @param {number} [least] distance */
export function ticks(from, to, least = 0) {
  const rough = Math.max((to - from) / TICKS, 1e-12);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(least, power * /** @type {number} */ ([1, 2, 5, 10].find((factor) => factor * power >= rough)));
  const first = Math.ceil(from / step - 1e-9);
  return Array.from({ length: Math.max(Math.floor(to / step + 1e-9) - first + 1, 0) }, (_, index) => (first + index) * step);
}
