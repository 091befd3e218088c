// The anatomy of one run: a stepper over its rounds, and charts that are redrawn for each run.

class Anatomy {
  constructor(element) {
    const find = (selector) => element.querySelector(selector);
    this.find = find;
    this.steps = find(".steps");
    this.charts = Object.fromEntries(
      ["timeline", "confidence", "lookahead"].map((name) => [name, new Chart(find(`.chart.${name}`), { data: [], layout: {} })]),
    );
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
    for (const [name, chart] of Object.entries(this.charts)) chart.show(JSON.parse(run[name]));
    this.find(".so-far").textContent = this.beginning.join("");
    this.find(".place").textContent = "no rounds: the run ended at its first token";
    this.go(0, false);
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
    if (scroll) this.steps.scrollTop = current.offsetTop - this.steps.offsetTop - this.steps.clientHeight / 2;
    this.find(".place").textContent = `round ${this.at + 1} of ${steps.length}`;
    const [prompt, prefill] = this.beginning;
    const before = steps.slice(0, this.at).map((step) => step.dataset.text);
    const parts = [["prompt", prompt], ["", prefill + before.join("")], ["now", current.dataset.text]];
    this.find(".so-far").replaceChildren(
      ...parts.map(([kind, text]) => Object.assign(document.createElement("span"), { className: kind, textContent: text })),
    );
    this.find(".so-far").scrollTop = 1e9;
  }
}
