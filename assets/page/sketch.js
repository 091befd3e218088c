// Charts of a race without Plotly, for the file that replays it offline: lines, stacked bars, and a second axis.
// It reads the same figures as `chart.js` and is used in its place.

const MARGIN = { left: 44, right: 40, top: 10, bottom: 36 };
const TICKS = 5;

class Chart {
  constructor(element, figure) {
    this.element = element;
    this.figure = figure;
    this.canvas = element.appendChild(document.createElement("canvas"));
    this.canvas.setAttribute("role", "img");
    this.canvas.style.cssText = "position: absolute; inset: 0; width: 100%; height: 100%";
    new ResizeObserver(() => this.redraw()).observe(element);
    new MutationObserver(() => this.redraw()).observe(document.body, { attributeFilter: ["class"] });
    this.reset("");
  }

  reset() {
    this.traces = this.figure.data.map(() => []);
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
    const pen = canvas.getContext("2d");
    pen.scale(devicePixelRatio, devicePixelRatio);
    this.style = getComputedStyle(this.element);
    pen.font = `12px ${this.style.fontFamily}`;
    this.draw(pen, { x: MARGIN.left, y: MARGIN.top, width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom });
    canvas.setAttribute("aria-label", this.figure.data.map(({ name }, index) => `${name}: ${this.traces[index].length} points`).join("; "));
  }

  draw(pen, box) {
    const { data, layout } = this.figure;
    const bars = data.map((trace) => trace.type === "bar");
    const stacked = new Map(); // top of the bars at each x
    const all = this.traces.flat();
    const most = { x: Math.max(1e-9, ...all.map(([x]) => x)) + (bars.includes(true) ? 0.5 : 0), y: 1e-9, y2: layout.yaxis2?.range?.[1] ?? 1 };
    this.traces.forEach((points, index) => {
      if (data[index].yaxis === "y2") return;
      for (const [x, y] of points) {
        if (bars[index]) stacked.set(x, (stacked.get(x) ?? 0) + y);
        most.y = Math.max(most.y, bars[index] ? stacked.get(x) : y);
      }
    });
    const place = (x, y, axis = "y") => [box.x + (box.width * x) / most.x, box.y + box.height * (1 - y / most[axis])];
    this.axes(pen, box, most, place);
    stacked.clear();
    this.traces.forEach((points, index) => {
      if (!bars[index]) return;
      pen.fillStyle = this.resolve(data[index].marker.color);
      for (const [x, y] of points) {
        const base = stacked.get(x) ?? 0;
        const [left, top] = place(x - 0.42, base + y);
        const [right, bottom] = place(x + 0.42, base);
        pen.fillRect(left, top, Math.max(right - left, 1), bottom - top);
        stacked.set(x, base + y);
      }
    });
    this.traces.forEach((points, index) => {
      if (!bars[index]) this.line(pen, points.filter(([, y]) => y !== null), data[index], place);
    });
  }

  line(pen, points, { line, yaxis }, place) {
    pen.strokeStyle = this.resolve(line.color);
    pen.lineWidth = line.width;
    pen.setLineDash(line.dash === "dot" ? [2, 3] : []);
    pen.beginPath();
    points.forEach(([x, y], index) => {
      const [left, top] = place(x, y, yaxis);
      if (!index) return pen.moveTo(left, top);
      if (line.shape === "hv") pen.lineTo(left, place(x, points[index - 1][1], yaxis)[1]);
      pen.lineTo(left, top);
    });
    pen.stroke();
    pen.setLineDash([]);
  }

  axes(pen, box, most, place) {
    const { layout } = this.figure;
    pen.fillStyle = this.resolve("var(--sd-mute)");
    pen.strokeStyle = this.resolve("var(--sd-line)");
    pen.lineWidth = 1;
    pen.textAlign = "right";
    for (const y of ticks(most.y)) {
      const [, top] = place(0, y);
      pen.beginPath();
      pen.moveTo(box.x, top);
      pen.lineTo(box.x + box.width, top);
      pen.stroke();
      pen.fillText(label(y), box.x - 6, top + 4);
    }
    pen.textAlign = "center";
    for (const x of ticks(most.x)) pen.fillText(label(x), place(x, 0)[0], box.y + box.height + 16);
    pen.fillText(title(layout.xaxis), box.x + box.width / 2, box.y + box.height + 31);
    pen.textAlign = "left";
    for (const y of layout.yaxis2?.tickvals ?? []) pen.fillText(label(y), box.x + box.width + 6, place(0, y, "y2")[1] + 4);
    if (layout.yaxis2) pen.fillText(title(layout.yaxis2), box.x + box.width + 24, box.y + box.height / 2);
    pen.save();
    pen.translate(12, box.y + box.height / 2);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "center";
    pen.fillText(title(layout.yaxis), 0, 0);
    pen.restore();
  }

  resolve(colour) {
    return colour.replace(/var\((--[\w-]+)\)/g, (_, name) => this.style.getPropertyValue(name).trim());
  }
}

const title = (axis) => axis?.title?.text ?? axis?.title ?? "";
const label = (value) => String(Number(value.toPrecision(3)));

// Round numbers from 0 to `most`.
function ticks(most) {
  const rough = most / TICKS;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, index) => index * step);
}
