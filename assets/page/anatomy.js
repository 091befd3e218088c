// The anatomy of one run: a stepper over its rounds, and charts that are redrawn for each run.

class Anatomy {
  constructor(element) {
    const find = (selector) => element.querySelector(selector);
    this.find = find;
    this.steps = find(".steps");
    this.charts = Object.fromEntries(
      ["timeline", "confidence", "lookahead"].map((name) => [name, new Chart(find(`.chart.${name}`), { data: [], layout: {} })]),
    );
    this.timeline = this.charts.timeline.element;
    this.charts.timeline.ready.then(() => {
      this.timeline.on("plotly_hover", ({ points }) => this.light(points[0].customdata, true));
      this.timeline.on("plotly_unhover", () => this.light(null));
      this.timeline.on("plotly_click", ({ points }) => this.go(points[0].customdata - 1));
    });
    this.steps.addEventListener("pointerover", (event) => this.light(Number(event.target.closest(".step")?.dataset.number) || null));
    this.steps.addEventListener("pointerleave", () => this.light(null));
    for (const button of element.querySelectorAll("[data-zoom]")) {
      button.addEventListener("click", () => this.zoom(Number(button.dataset.zoom)));
    }
    find(".back").addEventListener("click", () => this.go(this.at - 1));
    find(".forward").addEventListener("click", () => this.go(this.at + 1));
    this.steps.addEventListener("keydown", (event) => this.key(event));
    this.steps.addEventListener("click", (event) => {
      const step = event.target.closest(".step");
      if (step) this.go([...this.steps.children].indexOf(step));
    });
  }

  receive(text) {
    if (!text) return;
    const run = JSON.parse(text);
    this.find(".anatomy").dataset.state = "full";
    for (const name of ["about", "explanation", "steps", "table"]) this.find(`.${name}`).innerHTML = run[name]; // escaped by the server
    this.beginning = [run.prompt, run.prefill];
    for (const [name, chart] of Object.entries(this.charts)) {
      chart.run = run.steps; // another run is not shown in this one's zoom
      chart.show(JSON.parse(run[name]));
    }
    this.spans = Anatomy.spans(this.charts.timeline.figure.data);
    this.lit = null;
    this.find(".so-far").textContent = this.beginning.join("");
    this.find(".place").textContent = "no rounds: the run ended at its first token";
    this.at = 0;
    setTimeout(() => this.go(0, false)); // once the timeline is drawn
  }

  key(event) {
    const last = this.steps.children.length - 1;
    const goals = { ArrowRight: this.at + 1, ArrowDown: this.at + 1, ArrowLeft: this.at - 1, ArrowUp: this.at - 1, Home: 0, End: last };
    if (!(event.key in goals)) return;
    event.preventDefault();
    this.go(goals[event.key]);
  }

  go(at, scroll = true) {
    const steps = [...this.steps.children];
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
    const parts = [["prompt", prompt], ["", prefill + before.join("")], ["now", current.dataset.text]];
    this.find(".so-far").replaceChildren(
      ...parts.map(([kind, text]) => Object.assign(document.createElement("span"), { className: kind, textContent: text })),
    );
    this.find(".so-far").scrollTop = 1e9;
  }

  reveal(step) {
    this.steps.scrollTop = step.offsetTop - this.steps.offsetTop - this.steps.clientHeight / 2;
  }

  // When each round began and ended, in milliseconds of the speculative clock, by its number.
  static spans(traces) {
    const spans = {};
    for (const { base, x, customdata } of traces) {
      customdata.forEach((number, index) => {
        const [from, to] = spans[number] ?? [Infinity, 0];
        spans[number] = [Math.min(from, base[index]), Math.max(to, base[index] + x[index])];
      });
    }
    return spans;
  }

  // The round that is pointed at, in the list and on the timeline; null: none.
  light(number, scroll = false) {
    if (number === this.lit) return;
    this.lit = number;
    this.steps.querySelector(".lit")?.classList.remove("lit");
    const step = number && this.steps.children[number - 1];
    step?.classList.add("lit");
    if (step && scroll) this.reveal(step);
    this.mark();
  }

  mark() {
    const colour = getComputedStyle(this.timeline).getPropertyValue("--sd-own").trim();
    const shapes = [[this.at + 1, 0.12], [this.lit, 0.3]].filter(([number]) => this.spans[number]).map(([number, opacity]) => {
      const [x0, x1] = this.spans[number];
      return { type: "rect", x0, x1, yref: "paper", y0: 0, y1: 1, line: { color: colour, width: 1 }, fillcolor: colour, opacity };
    });
    Plotly.relayout(this.timeline, { shapes });
  }

  // By a factor, around the current round; 0: the whole run.
  zoom(factor) {
    const span = this.spans[this.at + 1];
    const end = Math.max(0, ...Object.values(this.spans).map(([, to]) => to));
    if (!factor || !span) return Plotly.relayout(this.timeline, { "xaxis.range": [0, end] });
    const [from, to] = this.timeline.layout.xaxis.range;
    const half = ((to - from) * factor) / 2;
    const middle = (span[0] + span[1]) / 2;
    return Plotly.relayout(this.timeline, { "xaxis.range": [Math.max(middle - half, 0), middle + half] });
  }

  // Of a zoomed timeline, the part where the current round is.
  keepInView() {
    const span = this.spans[this.at + 1];
    const [from, to] = this.timeline.layout?.xaxis?.range ?? [0, Infinity];
    if (!span || (span[0] >= from && span[1] <= to)) return;
    const middle = (span[0] + span[1]) / 2;
    Plotly.relayout(this.timeline, { "xaxis.range": [middle - (to - from) / 2, middle + (to - from) / 2] });
  }
}
