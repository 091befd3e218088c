// What every chart of a run can do, whoever draws it: points are added while it plays, marks stand where a setting was
// moved, and another figure replaces it as a whole. `chart.js` draws with Plotly, `sketch.js` on a canvas.

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
    this.run = ""; // a reader's zoom is kept within one
    /** @type {Points[]} */ this.points = empty(figure);
    /** @type {Points[] | null} */ this.pending = null; // added, but not drawn yet
    /** @type {Mark[]} */ this.marks = [];
    new ResizeObserver(() => this.resize()).observe(element);
    new MutationObserver(() => this.repaint()).observe(document.body, { attributeFilter: ["class"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.repaint());
  }

  /** Empty, for another run. @param {string} run */
  reset(run) {
    this.run = run;
    this.points = empty(this.figure);
    this.pending = null;
    this.marks = [];
    this.redrawSoon();
  }

  /** Points for each trace; drawn soon. @param {Point[][]} traces */
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
   * A vertical line with a word at the top.
   * @param {number} x
   * @param {string} text
   */
  mark(x, text) {
    this.marks.push({ x, text });
    this.redrawSoon();
  }

  /** Another figure, with its data. @param {Figure} figure */
  show(figure) {
    this.figure = figure;
    this.pending = null;
    this.marks = [];
    this.points = figure.data.map(({ x = [], y = [] }) => ({ x: [...x], y: [...y] }));
    this.redrawSoon();
  }

  /** Draw what was added, now. */
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

  // What a renderer does.

  appendSoon() {}

  redrawSoon() {}

  repaint() {}

  resize() {}
}

/** @param {Figure} figure @returns {Points[]} */
function empty(figure) {
  return figure.data.map(() => ({ x: [], y: [] }));
}
