// Charts without Plotly, for offline files: lines, grouped or stacked bars, error bars, a second axis. They read the
// same figures as those of `chart.js`.

import { LiveChart } from "./live_chart.js";

/** @typedef {import("./live_chart.js").Figure} Figure */

const MARGIN = { left: 46, right: 16, top: 12, bottom: 36, second: 26, legend: 22 };
const TICKS = 5;
const GROUP = 0.84; // width of a group of bars, as a share of the distance between groups

export class Sketch extends LiveChart {
  /**
   * @param {HTMLElement} element
   * @param {Figure} figure
   */
  constructor(element, figure) {
    super(element, figure);
    this.canvas = element.appendChild(document.createElement("canvas"));
    this.canvas.setAttribute("role", "img");
    this.canvas.style.cssText = "position: absolute; inset: 0; width: 100%; height: 100%";
    this.pen = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    this.box = { x: 0, y: 0, width: 0, height: 0 };
    this.most = { x: 1, y: 1, y2: 1 };
    /** @type {any[] | null} */ this.names = null; // on the x axis
    /** @type {Map<any, number>} */ this.stack = new Map();
    /** @type {number | undefined} */ this.frame = undefined;
    this.redraw();
  }

  appendSoon() {
    this.redrawSoon();
  }

  redrawSoon() {
    this.frame ??= requestAnimationFrame(() => this.flush());
  }

  flush() {
    if (this.frame !== undefined) cancelAnimationFrame(this.frame);
    this.frame = undefined;
    const pending = super.flush();
    this.redraw();
    return pending;
  }

  repaint() {
    this.redrawSoon();
  }

  resize() {
    this.redrawSoon();
  }

  /** The points of a trace as [x, y]. @param {number} index @returns {[any, any][]} */
  pairs(index) {
    const { x, y } = this.points[index];
    return x.map((at, number) => [at, y[number]]);
  }

  redraw() {
    const { canvas, element: { offsetWidth: width, offsetHeight: height } } = this;
    if (!width || !height || !canvas) return;
    Object.assign(canvas, { width: width * devicePixelRatio, height: height * devicePixelRatio });
    const { data, layout } = this.figure;
    const named = data.filter(({ name }) => name).map(({ name }) => name);
    canvas.setAttribute("aria-label", `${title(layout.yaxis)} by ${title(layout.xaxis) || "kind"}: ${named.join(", ")}`);
    this.pen.scale(devicePixelRatio, devicePixelRatio);
    this.pen.font = `12px ${getComputedStyle(this.element).fontFamily}`;
    const legend = layout.showlegend === false || named.length < 2 ? 0 : MARGIN.legend;
    const right = MARGIN.right + (layout.yaxis2 ? MARGIN.second : 0);
    this.box = { x: MARGIN.left, y: MARGIN.top + legend, width: width - MARGIN.left - right, height: height - MARGIN.top - MARGIN.bottom - legend };
    this.measure();
    this.axes();
    if (legend) this.legend();
    data.forEach((trace, index) => { if (trace.type === "bar") this.bars(trace, index); });
    data.forEach((trace, index) => { if (trace.type !== "bar") this.line(trace, this.pairs(index).filter(([, y]) => y !== null)); });
    for (const shape of layout.shapes ?? []) this.shape(shape);
    for (const { x, text } of this.marks) this.marked(x, text);
  }

  /** Measure the axes' ranges; names on the x axis are at 0.5, 1.5, … */
  measure() {
    const { data, layout } = this.figure;
    const all = data.flatMap((_, index) => this.pairs(index));
    this.names = all.some(([x]) => typeof x === "string") ? [...new Set(all.map(([x]) => x))] : null;
    const bars = data.some(({ type }) => type === "bar");
    const right = this.names ? this.names.length : Math.max(1e-9, ...all.map(([x]) => x)) + (bars ? 0.5 : 0);
    this.most = { x: right, y: Math.max(1e-9, ...(layout.shapes ?? []).map((/** @type {any} */ { y0 }) => y0)), y2: layout.yaxis2?.range?.[1] ?? 1 };
    this.stack = new Map();
    data.forEach((trace, index) => {
      if (trace.yaxis === "y2") return;
      this.pairs(index).forEach(([x, y], at) => {
        const stacked = trace.type === "bar" && layout.barmode === "stack";
        const top = stacked ? (this.stack.get(x) ?? 0) + y : y + (trace.error_y?.array?.[at] ?? 0);
        if (stacked) this.stack.set(x, top);
        this.most.y = Math.max(this.most.y, top);
      });
    });
    this.stack.clear();
  }

  /**
   * @param {any} x
   * @param {number} y
   * @param {"y" | "y2"} axis
   * @returns {[number, number]}
   */
  place(x, y, axis = "y") {
    const { box, most } = this;
    const at = this.names?.includes(x) ? this.names.indexOf(x) + 0.5 : x;
    return [box.x + (box.width * at) / most.x, box.y + box.height * (1 - y / most[axis])];
  }

  /**
   * @param {any} trace
   * @param {number} index
   */
  bars(trace, index) {
    const stacked = this.figure.layout.barmode === "stack";
    const groups = stacked ? [index] : this.figure.data.flatMap(({ type }, number) => (type === "bar" ? [number] : []));
    const unit = this.box.width / this.most.x;
    const width = (GROUP * unit) / groups.length;
    this.pairs(index).forEach(([x, y], at) => {
      const base = stacked ? this.stack.get(x) ?? 0 : 0;
      const [middle, top] = this.place(x, base + y);
      const left = middle - (GROUP * unit) / 2 + groups.indexOf(index) * width;
      this.pen.fillStyle = this.resolve(trace.marker.color);
      this.pen.fillRect(left, top, Math.max(width - 1, 1), this.place(x, base)[1] - top);
      if (stacked) this.stack.set(x, base + y);
      const spread = trace.error_y?.array?.[at];
      if (!spread) return;
      const below = trace.error_y.arrayminus?.[at] ?? spread;
      const ends = [y - below, y + spread].map((end) => /** @type {[number, number]} */ ([left + width / 2, this.place(x, end)[1]]));
      this.stroke({ color: trace.error_y.color, width: 1.5 }, ends);
    });
  }

  /** Draw a line across the whole chart; with names on the x axis, its x counts them from 0. @param {any} shape */
  shape({ x0, x1, y0, y1, line }) {
    if (x0 !== x1) return this.stroke(line, [this.place(0, y0), this.place(this.most.x, y0)]);
    const x = this.names ? x0 + 0.5 : x0;
    this.stroke(line, [y0, y1].map((share) => this.place(x, share * this.most.y)));
  }

  /**
   * Draw a vertical line with a word at the top.
   * @param {number} x
   * @param {string} text
   */
  marked(x, text) {
    const [left, bottom] = this.place(x, 0);
    this.stroke({ color: "var(--sd-ink)", width: 1, dash: "dot" }, [[left, bottom], [left, this.box.y]]);
    this.write(text, left + 3, this.box.y + 10, "left");
  }

  /**
   * @param {any} trace
   * @param {[any, any][]} points
   */
  line({ line, marker, mode = "lines", yaxis, error_y: spread, text }, points) {
    const corners = points.flatMap(([x, y], index) => {
      const here = this.place(x, y, yaxis);
      return index && line?.shape === "hv" ? [/** @type {[number, number]} */ ([here[0], this.place(x, points[index - 1][1], yaxis)[1]]), here] : [here];
    });
    if (mode.includes("lines")) this.stroke(line, corners);
    if (!mode.includes("markers")) return;
    points.forEach(([x, y], index) => {
      const { array, arrayminus = array, color } = spread ?? {};
      if (array) this.stroke({ color, width: 1.5 }, [y - arrayminus[index], y + array[index]].map((end) => this.place(x, end)));
      if (mode.includes("text")) this.write(text[index], corners[index][0], corners[index][1] - 8, "center");
    });
    this.pen.fillStyle = this.resolve(line?.color ?? marker.color);
    for (const [x, y] of corners) {
      this.pen.beginPath();
      this.pen.arc(x, y, 3, 0, 2 * Math.PI);
      this.pen.fill();
    }
  }

  /**
   * @param {{ color: string, width?: number, dash?: string }} style
   * @param {[number, number][]} corners
   */
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
    const { pen, box, most, figure: { layout } } = this;
    for (const y of ticks(most.y)) {
      const [, top] = this.place(0, y);
      this.stroke({ color: "var(--sd-line)", width: 1 }, [[box.x, top], [box.x + box.width, top]]);
      this.write(label(y), box.x - 6, top + 4, "right");
    }
    const places = this.names?.map((name) => [plain(name), name]) ?? ticks(most.x).map((x) => [label(x), x]);
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

  legend() {
    let left = this.box.x;
    for (const { name, marker, line } of this.figure.data) {
      if (!name) continue;
      this.pen.fillStyle = this.resolve(marker?.color ?? line.color);
      this.pen.fillRect(left, 6, 12, 12);
      this.write(plain(name), left + 17, 16, "left");
      left += 36 + this.pen.measureText(plain(name)).width;
    }
  }

  /**
   * @param {string} text
   * @param {number} x
   * @param {number} y
   * @param {CanvasTextAlign} align
   */
  write(text, x, y, align) {
    this.pen.fillStyle = this.resolve("var(--sd-mute)");
    this.pen.textAlign = align;
    this.pen.fillText(text, x, y);
  }
}

/** @param {any} axis */
const title = (axis) => axis?.title?.text ?? axis?.title ?? "";
/** @param {number} value */
const label = (value) => String(Number(value.toPrecision(3)));
/** A text without markup, some of which Plotly renders. @param {string} text */
const plain = (text) => new DOMParser().parseFromString(text, "text/html").body.textContent ?? "";

/** Round numbers from 0 to `most`. @param {number} most */
export function ticks(most) {
  const rough = most / TICKS;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * /** @type {number} */ ([1, 2, 5, 10].find((factor) => factor * power >= rough));
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, index) => index * step);
}
