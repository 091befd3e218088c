// Charts without Plotly, for files that are opened offline: lines, bars side by side or stacked, whiskers, a second
// axis. It reads the same figures as `chart.js` and is used in its place.

const MARGIN = { left: 46, right: 16, top: 12, bottom: 36, second: 26, legend: 22 };
const TICKS = 5;
const GROUP = 0.84; // of the distance between two places, for all bars of one

class Chart {
  constructor(element, figure) {
    this.element = element;
    this.figure = figure;
    this.canvas = element.appendChild(document.createElement("canvas"));
    this.canvas.setAttribute("role", "img");
    this.canvas.style.cssText = "position: absolute; inset: 0; width: 100%; height: 100%";
    new ResizeObserver(() => this.redraw()).observe(element);
    new MutationObserver(() => this.redraw()).observe(document.body, { attributeFilter: ["class"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    this.reset();
  }

  reset() {
    this.traces = this.figure.data.map(() => []);
    this.redraw();
  }

  // The points that the figure comes with.
  show() {
    this.traces = this.figure.data.map(({ x = [], y = [] }) => x.map((at, index) => [at, y[index]]));
    this.redraw();
  }

  // Points for each trace, as [[x, y], …].
  add(traces) {
    traces.forEach((points, index) => this.traces[index].push(...points));
    this.pending ??= requestAnimationFrame(() => this.flush());
  }

  flush() {
    cancelAnimationFrame(this.pending);
    this.pending = null;
    this.redraw();
  }

  resize() {
    this.redraw();
  }

  redraw() {
    const { canvas, element: { offsetWidth: width, offsetHeight: height } } = this;
    if (!width || !height) return;
    Object.assign(canvas, { width: width * devicePixelRatio, height: height * devicePixelRatio });
    const { data, layout } = this.figure;
    const named = data.filter(({ name }) => name).map(({ name }) => name);
    canvas.setAttribute("aria-label", `${title(layout.yaxis)} by ${title(layout.xaxis) || "kind"}: ${named.join(", ")}`);
    this.pen = canvas.getContext("2d");
    this.pen.scale(devicePixelRatio, devicePixelRatio);
    this.style = getComputedStyle(this.element);
    this.pen.font = `12px ${this.style.fontFamily}`;
    const legend = layout.showlegend === false || named.length < 2 ? 0 : MARGIN.legend;
    const right = MARGIN.right + (layout.yaxis2 ? MARGIN.second : 0);
    this.box = { x: MARGIN.left, y: MARGIN.top + legend, width: width - MARGIN.left - right, height: height - MARGIN.top - MARGIN.bottom - legend };
    this.measure();
    this.axes();
    if (legend) this.legend();
    data.forEach((trace, index) => { if (trace.type === "bar") this.bars(trace, index); });
    data.forEach((trace, index) => { if (trace.type !== "bar") this.line(trace, this.traces[index].filter(([, y]) => y !== null)); });
    for (const shape of layout.shapes ?? []) this.mark(shape);
  }

  // What the axes span; names on the x axis stand at 0.5, 1.5, …
  measure() {
    const { data, layout } = this.figure;
    const all = this.traces.flat();
    this.names = all.some(([x]) => typeof x === "string") ? [...new Set(all.map(([x]) => x))] : null;
    const bars = data.some(({ type }) => type === "bar");
    const right = this.names ? this.names.length : Math.max(1e-9, ...all.map(([x]) => x)) + (bars ? 0.5 : 0);
    this.most = { x: right, y: Math.max(1e-9, ...(layout.shapes ?? []).map(({ y0 }) => y0)), y2: layout.yaxis2?.range?.[1] ?? 1 };
    this.stack = new Map();
    this.traces.forEach((points, index) => {
      if (data[index].yaxis === "y2") return;
      points.forEach(([x, y], at) => {
        const stacked = data[index].type === "bar" && layout.barmode === "stack";
        const top = stacked ? (this.stack.get(x) ?? 0) + y : y + (data[index].error_y?.array?.[at] ?? 0);
        if (stacked) this.stack.set(x, top);
        this.most.y = Math.max(this.most.y, top);
      });
    });
    this.stack.clear();
  }

  place(x, y, axis = "y") {
    const { box, most } = this;
    const at = this.names?.includes(x) ? this.names.indexOf(x) + 0.5 : x;
    return [box.x + (box.width * at) / most.x, box.y + box.height * (1 - y / most[axis])];
  }

  bars(trace, index) {
    const stacked = this.figure.layout.barmode === "stack";
    const groups = stacked ? [index] : this.figure.data.flatMap(({ type }, number) => (type === "bar" ? [number] : []));
    const unit = this.box.width / this.most.x;
    const width = (GROUP * unit) / groups.length;
    this.traces[index].forEach(([x, y], at) => {
      const base = stacked ? this.stack.get(x) ?? 0 : 0;
      const [middle, top] = this.place(x, base + y);
      const left = middle - (GROUP * unit) / 2 + groups.indexOf(index) * width;
      this.pen.fillStyle = this.resolve(trace.marker.color);
      this.pen.fillRect(left, top, Math.max(width - 1, 1), this.place(x, base)[1] - top);
      if (stacked) this.stack.set(x, base + y);
      const spread = trace.error_y?.array?.[at];
      if (!spread) return;
      const ends = [y - spread, y + spread].map((end) => [left + width / 2, this.place(x, end)[1]]);
      this.stroke({ color: trace.error_y.color, width: 1.5 }, ends);
    });
  }

  // A line across the whole chart; where names stand on the x axis, its x counts them from 0.
  mark({ x0, x1, y0, y1, line }) {
    if (x0 !== x1) return this.stroke(line, [this.place(0, y0), this.place(this.most.x, y0)]);
    const x = this.names ? x0 + 0.5 : x0;
    this.stroke(line, [y0, y1].map((share) => this.place(x, share * this.most.y)));
  }

  line({ line, marker, mode = "lines", yaxis, error_y: spread, text }, points) {
    const corners = points.flatMap(([x, y], index) => {
      const here = this.place(x, y, yaxis);
      return index && line?.shape === "hv" ? [[here[0], this.place(x, points[index - 1][1], yaxis)[1]], here] : [here];
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

  stroke({ color, width = 2, dash }, corners) {
    const { pen } = this;
    pen.strokeStyle = this.resolve(color);
    pen.lineWidth = width;
    pen.setLineDash({ dot: [2, 3], dash: [6, 4] }[dash] ?? []);
    pen.beginPath();
    for (const corner of corners) pen.lineTo(...corner);
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

  write(text, x, y, align) {
    this.pen.fillStyle = this.resolve("var(--sd-mute)");
    this.pen.textAlign = align;
    this.pen.fillText(text, x, y);
  }

  resolve(colour) {
    return colour.replace(/var\((--[\w-]+)\)/g, (_, name) => this.style.getPropertyValue(name).trim());
  }
}

const title = (axis) => axis?.title?.text ?? axis?.title ?? "";
const label = (value) => String(Number(value.toPrecision(3)));
const plain = (text) => new DOMParser().parseFromString(text, "text/html").body.textContent; // Plotly takes some markup for its own

// Round numbers from 0 to `most`.
function ticks(most) {
  const rough = most / TICKS;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, index) => index * step);
}
