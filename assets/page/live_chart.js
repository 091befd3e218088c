// The contract of a run's charts: points are added while it plays, marks show where a setting was moved, and another
// figure replaces the whole chart. `chart.js` draws with Plotly, `sketch.js` on a canvas.

/**
 * A Plotly figure as the server writes it; colours name variables of the style sheet.
 * @typedef {{ data: any[], layout: any }} Figure
 */
/** @typedef {{ x: any[], y: any[] }} Points */
/** @typedef {[x: number | string, y: number | null]} Point */
/** @typedef {{ x: number, text: string }} Mark */

export class LiveChart {
  /**
   * @param {HTMLElement} element
   * @param {Figure} figure
   */
  constructor(element, figure) {
    this.element = element;
    this.figure = figure;
    this.run = ""; // the reader's zoom is kept within a run
    /** @type {Points[]} */ this.points = empty(figure);
    /** @type {Points[] | null} */ this.pending = null; // added, but not drawn yet
    /** @type {Mark[]} */ this.marks = [];
    new ResizeObserver(() => this.resize()).observe(element);
    new MutationObserver(() => this.repaint()).observe(document.body, { attributeFilter: ["class"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.repaint());
  }

  /** Clear the chart for another run. @param {string} run */
  reset(run) {
    this.run = run;
    this.points = empty(this.figure);
    this.pending = null;
    this.marks = [];
    this.redrawSoon();
  }

  /** Add points to each trace; they are drawn soon. @param {Point[][]} traces */
  add(traces) {
    const pending = (this.pending ??= empty(this.figure));
    traces.forEach((points, index) => {
      for (const [x, y] of points) {
        pending[index].x.push(x);
        pending[index].y.push(y);
      }
    });
    this.appendSoon();
  }

  /**
   * Add a vertical line with a word at the top.
   * @param {number} x
   * @param {string} text
   */
  mark(x, text) {
    this.marks.push({ x, text });
    this.redrawSoon();
  }

  /** Show another figure with its data. @param {Figure} figure */
  show(figure) {
    this.figure = figure;
    this.pending = null;
    this.marks = [];
    this.points = figure.data.map(({ x = [], y = [] }) => ({ x: [...x], y: [...y] }));
    this.redrawSoon();
  }

  /** Move pending points into the chart's data and return them, for a renderer to draw. */
  flush() {
    const { pending } = this;
    this.pending = null;
    pending?.forEach(({ x, y }, index) => {
      this.points[index].x.push(...x);
      this.points[index].y.push(...y);
    });
    return pending;
  }

  /** A text with the style sheet's variables replaced by their values here. @param {string} text */
  resolve(text) {
    const style = getComputedStyle(this.element);
    return text.replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
  }

  // Renderers override these.

  appendSoon() {}

  redrawSoon() {}

  repaint() {}

  resize() {}
}

/** @param {Figure} figure @returns {Points[]} */
function empty(figure) {
  return figure.data.map(() => ({ x: [], y: [] }));
}
