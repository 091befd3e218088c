// The anatomy of one run: a stepper over its rounds, and charts that are redrawn for each run.

import { Chart } from "./chart.js";

/** @typedef {[from: number, to: number]} Span */

const CHARTS = /** @type {const} */ (["timeline", "confidence", "lookahead", "accepted", "position"]);

export class Anatomy {
  /** @param {HTMLElement} element */
  constructor(element) {
    /** @param {string} selector */
    const find = (selector) => /** @type {HTMLElement} */ (element.querySelector(selector));
    this.find = find;
    this.steps = find(".steps");
    this.at = 0;
    /** @type {number | null} */ this.lit = null;
    /** @type {string | null} */ this.run = null; // what the run that is shown wrote, and in which rounds
    /** @type {Record<number, Span>} */ this.spans = {};
    /** @type {[prompt: string, prefill: string]} */ this.beginning = ["", ""];
    const [timeline, confidence, lookahead, accepted, position] = CHARTS.map((name) => new Chart(find(`.chart.${name}`), { data: [], layout: {} }));
    this.charts = { timeline, confidence, lookahead, accepted, position };
    timeline.ready.then(() => {
      const plot = /** @type {any} */ (timeline.element);
      plot.on("plotly_hover", (/** @type {any} */ { points }) => this.light(points[0].customdata, true));
      plot.on("plotly_unhover", () => this.light(null));
      plot.on("plotly_click", (/** @type {any} */ { points }) => this.go(points[0].customdata - 1));
    });
    this.steps.addEventListener("pointerover", ({ target }) => this.light(Number(stepAt(target)?.dataset.number) || null));
    this.steps.addEventListener("pointerleave", () => this.light(null));
    for (const button of /** @type {NodeListOf<HTMLElement>} */ (element.querySelectorAll("[data-zoom]"))) {
      button.addEventListener("click", () => this.zoom(Number(button.dataset.zoom)));
    }
    find(".back").addEventListener("click", () => this.go(this.at - 1));
    find(".forward").addEventListener("click", () => this.go(this.at + 1));
    this.steps.addEventListener("keydown", (event) => this.key(event));
    this.steps.addEventListener("click", ({ target }) => {
      const step = stepAt(target);
      if (step) this.go([...this.steps.children].indexOf(step));
    });
  }

  /** Show a run; of the same run with more repeats, only what is new, at the same place. @param {string} text */
  receive(text) {
    if (!text) return;
    const run = JSON.parse(text);
    this.find(".anatomy").dataset.state = "full";
    const shown = JSON.stringify([run.prompt, run.prefill, run.steps]);
    const again = shown === this.run;
    this.run = shown;
    for (const name of ["about", "explanation", "table", "parts"]) this.find(`.${name}`).innerHTML = run[name]; // escaped by the server
    if (!again) this.steps.innerHTML = run.steps;
    this.beginning = [run.prompt, run.prefill];
    for (const name of CHARTS) {
      this.charts[name].run = run.steps; // the zoom of this run does not apply to another one
      this.charts[name].show(JSON.parse(run[name]));
    }
    this.spans = spans(this.charts.timeline.figure.data);
    if (!again) {
      this.lit = null;
      this.find(".so-far").textContent = this.beginning.join("");
      this.find(".place").textContent = "no rounds: the run ended at its first token";
      this.at = 0;
    }
    setTimeout(() => this.go(this.at, false)); // once the timeline is drawn
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const last = this.steps.children.length - 1;
    /** @type {Record<string, number>} */
    const goals = { ArrowRight: this.at + 1, ArrowDown: this.at + 1, ArrowLeft: this.at - 1, ArrowUp: this.at - 1, Home: 0, End: last };
    if (!(event.key in goals)) return;
    event.preventDefault();
    this.go(goals[event.key]);
  }

  /** @param {number} at */
  go(at, scroll = true) {
    const steps = /** @type {HTMLElement[]} */ ([...this.steps.children]);
    if (!steps.length) return;
    this.at = Math.min(Math.max(at, 0), steps.length - 1);
    steps.forEach((step, index) => {
      step.classList.toggle("current", index === this.at);
      step.classList.toggle("ahead", index > this.at);
    });
    const current = steps[this.at];
    if (scroll) this.reveal(current);
    this.keepInView();
    this.mark();
    this.find(".place").textContent = `round ${this.at + 1} of ${steps.length}`;
    const [prompt, prefill] = this.beginning;
    const before = steps.slice(0, this.at).map((step) => step.dataset.text);
    const parts = [["prompt", prompt], ["", prefill + before.join("")], ["now", current.dataset.text ?? ""]];
    this.find(".so-far").replaceChildren(
      ...parts.map(([kind, text]) => Object.assign(document.createElement("span"), { className: kind, textContent: text })),
    );
    this.find(".so-far").scrollTop = 1e9;
  }

  /** @param {HTMLElement} step */
  reveal(step) {
    this.steps.scrollTop = step.offsetTop - this.steps.offsetTop - this.steps.clientHeight / 2;
  }

  /** Highlight the round under the pointer in the list and on the timeline; null: none. @param {number | null} number */
  light(number, scroll = false) {
    if (number === this.lit) return;
    this.lit = number;
    this.steps.querySelector(".lit")?.classList.remove("lit");
    const step = number && this.steps.children[number - 1];
    if (step instanceof HTMLElement) {
      step.classList.add("lit");
      if (scroll) this.reveal(step);
    }
    this.mark();
  }

  mark() {
    const colour = this.charts.timeline.resolve("var(--sd-own)");
    const rounds = [{ number: this.at + 1, opacity: 0.12 }, { number: this.lit ?? 0, opacity: 0.3 }];
    const shapes = rounds.filter(({ number }) => this.spans[number]).map(({ number, opacity }) => {
      const [x0, x1] = this.spans[number];
      return { type: "rect", x0, x1, yref: "paper", y0: 0, y1: 1, line: { color: colour, width: 1 }, fillcolor: colour, opacity };
    });
    this.charts.timeline.relayout({ shapes });
  }

  /** Zoom the timeline by a factor around the current round; 0: show the whole run. @param {number} factor */
  zoom(factor) {
    const span = this.spans[this.at + 1];
    const end = Math.max(0, ...Object.values(this.spans).map(([, to]) => to));
    if (!factor || !span) return this.range(0, end);
    const [from, to] = this.charts.timeline.layout.xaxis.range;
    const half = ((to - from) * factor) / 2;
    const middle = (span[0] + span[1]) / 2;
    return this.range(Math.max(middle - half, 0), middle + half);
  }

  /** Scroll a zoomed timeline to the current round. */
  keepInView() {
    const span = this.spans[this.at + 1];
    const [from, to] = this.charts.timeline.layout?.xaxis?.range ?? [0, Infinity];
    if (!span || (span[0] >= from && span[1] <= to)) return;
    const middle = (span[0] + span[1]) / 2;
    this.range(middle - (to - from) / 2, middle + (to - from) / 2);
  }

  /**
   * @param {number} from
   * @param {number} to
   */
  range(from, to) {
    this.charts.timeline.relayout({ "xaxis.range": [from, to] });
  }
}

/** @param {EventTarget | null} target */
function stepAt(target) {
  return target instanceof Element ? /** @type {HTMLElement | null} */ (target.closest(".step")) : null;
}

/** Start and end of each round by its number, in milliseconds of the speculative clock. @param {any[]} traces */
function spans(traces) {
  /** @type {Record<number, Span>} */
  const found = {};
  for (const { base, x, customdata } of traces) {
    customdata.forEach((/** @type {number} */ number, /** @type {number} */ index) => {
      const [from, to] = found[number] ?? [Infinity, 0];
      found[number] = [Math.min(from, base[index]), Math.max(to, base[index] + x[index])];
    });
  }
  return found;
}
