// The anatomy of one run: a stepper over its rounds, which are rendered from the run's record, and charts.

import { board } from "./board.js";
import { Chart } from "./chart.js";
import { paragraph } from "./race.js";
import { renderChips, roundNote } from "./rounds.js";

/** @typedef {import("./rounds.js").Round} Round */
/** @typedef {import("./race.js").Finished} Finished */

const CHARTS = /** @type {const} */ (["confidence", "lookahead", "accepted"]);

export class Anatomy {
  /** @param {HTMLElement} element */
  constructor(element) {
    /** @param {string} selector */
    const find = (selector) => /** @type {HTMLElement} */ (element.querySelector(selector));
    this.find = find;
    this.steps = find(".steps");
    this.at = 0;
    this.run = ""; // that is shown
    this.prompt = "";
    /** @type {Round[]} */ this.rounds = []; // the prefill first
    /** @type {{ from: number, to: number }[]} */ this.spans = []; // of each round, in milliseconds
    this.timeline = new Chart(find(".chart.timeline"));
    this.charts = Object.fromEntries(CHARTS.map((name) => [name, new Chart(find(`.chart.${name}`))]));
    find(".back").addEventListener("click", () => this.go(this.at - 1));
    find(".forward").addEventListener("click", () => this.go(this.at + 1));
    this.steps.addEventListener("keydown", (event) => this.key(event));
    this.steps.addEventListener("click", ({ target }) => {
      const chosen = target instanceof Element && target.closest(".step");
      if (chosen) this.go([...this.steps.children].indexOf(chosen));
    });
  }

  /** Show a run; of the same run with more repeats, only what is new, at the same place. @param {Finished | null} finished */
  receive(finished) {
    if (!finished) return;
    const { run, record, anatomy } = finished;
    const { prefill, rounds } = record.speculative;
    this.find(".anatomy").dataset.state = "full";
    this.find(".about").replaceChildren(paragraph(`${record.summary.made_by} ${rounds.length} rounds, proposals ${record.trace_source}.`));
    board(this.find(".passes .table"), [anatomy.passes]);
    for (const name of CHARTS) this.charts[name].show(anatomy.charts[name]);
    if (run === this.run) return;
    Object.assign(this, { run, prompt: record.prompt, rounds: [prefill, ...rounds], at: 0 });
    this.steps.replaceChildren(...rounds.map(step));
    this.draw(rounds);
    this.find(".so-far").textContent = this.prompt + textOf([prefill]);
    this.find(".place").textContent = "no rounds: the run ended at its first token";
    this.go(0, false);
  }

  /** Draw when the draft proposed and the target verified, on the speculative clock; whole rounds if that is unknown. @param {Round[]} rounds */
  draw(rounds) {
    let at = 0;
    this.spans = rounds.map(({ seconds }) => ({ from: at, to: (at += 1000 * seconds) }));
    const known = rounds.every(({ draft_seconds }) => typeof draft_seconds === "number");
    const ms = (/** @type {number | null | undefined} */ seconds) => 1000 * (seconds ?? 0);
    const base = this.spans.map(({ from }) => from);
    /** @type {(name: string, starts: number[], x: number[], colour: string) => any} */
    const row = (name, starts, x, colour) => ({ type: "bar", orientation: "h", name, base: starts, x, marker: { color: `var(--sd-${colour})` } });
    const drafts = rounds.map(({ draft_seconds }) => ms(draft_seconds));
    const data = known
      ? [row("draft", base, drafts, "rejected"), row("verify", base.map((from, index) => from + drafts[index]), rounds.map(({ verify_seconds }) => ms(verify_seconds)), "accepted")]
      : [row("round", base, rounds.map(({ seconds }) => ms(seconds)), "plain")];
    this.timeline.show({ data, layout: { xaxis: { title: "speculative clock, ms" } } });
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    /** @type {Record<string, number>} */
    const goals = { ArrowRight: this.at + 1, ArrowDown: this.at + 1, ArrowLeft: this.at - 1, ArrowUp: this.at - 1, Home: 0, End: this.steps.children.length - 1 };
    if (!(event.key in goals)) return;
    event.preventDefault();
    this.go(goals[event.key]);
  }

  /** @param {number} at */
  go(at, scroll = true) {
    const steps = /** @type {HTMLElement[]} */ ([...this.steps.children]);
    if (!steps.length) return;
    this.at = Math.min(Math.max(at, 0), steps.length - 1);
    steps.forEach((element, index) => {
      element.classList.toggle("current", index === this.at);
      element.classList.toggle("ahead", index > this.at);
    });
    if (scroll) this.steps.scrollTop = steps[this.at].offsetTop - this.steps.offsetTop - this.steps.clientHeight / 2;
    this.timeline.light(this.spans[this.at]);
    this.find(".place").textContent = `round ${this.at + 1} of ${steps.length}`;
    const parts = [["prompt", this.prompt], ["", textOf(this.rounds.slice(0, this.at + 1))], ["now", textOf([this.rounds[this.at + 1]])]];
    this.find(".so-far").replaceChildren(...parts.map(([className, textContent]) => Object.assign(document.createElement("span"), { className, textContent })));
    this.find(".so-far").scrollTop = 1e9;
  }
}

/** @param {Round[]} rounds */
const textOf = (rounds) => rounds.flatMap(({ committed }) => committed).map(({ text }) => text).join("");

/** @param {Round} round @param {number} index */
function step(round, index) {
  const element = Object.assign(document.createElement("li"), { className: "step" });
  const chips = Object.assign(document.createElement("span"), { className: "chips" });
  chips.append(...renderChips(round));
  const note = Object.assign(document.createElement("small"), { textContent: roundNote(round) });
  element.append(Object.assign(document.createElement("b"), { textContent: String(index + 1) }), chips, note);
  return element;
}
