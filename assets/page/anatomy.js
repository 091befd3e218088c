// The anatomy of one run: a stepper over its rounds, which are rendered from the run's record, and charts.

import { board } from "./board.js";
import { isChat } from "./race.js";
import { acceptedIn, instead, make, onPress, part, renderChips, roundNote } from "./rounds.js";

export class Anatomy {
  /** @param {HTMLElement} element */
  constructor(element) {
    this.find = (/** @type {string} */ selector) => part(element, selector);
    this.steps = this.find(".steps");
    this.at = 0;
    this.run = ""; // the one shown
    this.prompt = "";
    /** @type {Round[]} */ this.rounds = []; // the prefill first
    this.steps.addEventListener("keydown", (event) => this.key(event));
    onPress(this.steps, ".step", (chosen) => this.go([...this.steps.children].indexOf(chosen)));
  }

  /** Show a run. If it is the same after more repeats, the selected round stays. @param {Finished | null} finished */
  receive(finished) {
    if (!finished) return;
    const { run, record, anatomy } = finished;
    const { prefill, rounds } = record.speculative;
    this.find(".anatomy").dataset.state = "full";
    this.find(".about").textContent = `${record.summary.made_by} ${rounds.length} rounds. ${record.summary.notes[0]}`;
    board(this.find(".board"), anatomy ?? [], run); // a recording has none
    if (run === this.run) return;
    Object.assign(this, { run, prompt: record.prompt + (isChat(record) ? "\n" : ""), rounds: [prefill, ...rounds], at: 0 });
    this.steps.replaceChildren(...rounds.map(step));
    this.find(".so-far").textContent = this.prompt + textOf([prefill]);
    this.find(".place").textContent = "no rounds: the run ended at its first token";
    this.go(0, false);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const { at } = this;
    /** @type {Record<string, number>} */
    const goals = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: Infinity };
    if (!(event.key in goals)) return;
    event.preventDefault();
    this.go(goals[event.key]);
  }

  /** @param {number} at */
  go(at, scroll = true) {
    const steps = /** @type {HTMLElement[]} */ ([...this.steps.children]);
    if (!steps.length) return;
    this.at = Math.min(Math.max(at, 0), steps.length - 1);
    steps.forEach((element, index) => element.classList.toggle("current", index === this.at));
    if (scroll) this.steps.scrollTop = steps[this.at].offsetTop - this.steps.offsetTop - this.steps.clientHeight / 2;
    this.find(".place").textContent = `round ${this.at + 1} of ${steps.length}`;
    const before = make("span", textOf(this.rounds.slice(0, this.at + 1)));
    const round = this.rounds[this.at + 1];
    const kind = (/** @type {number} */ index) => (index < acceptedIn(round) ? "accepted" : "target"); // as in its row
    const now = round.committed.map(({ text }, index) => make("span", text, `token ${kind(index)}`));
    this.find(".so-far").replaceChildren(make("span", this.prompt, "prompt"), before, ...now);
    this.find(".so-far").scrollTop = 1e9;
    this.find(".instead").textContent = instead(round);
  }
}

/** @param {Round[]} rounds */
const textOf = (rounds) => rounds.flatMap(({ committed }) => committed).map(({ text }) => text).join("");

/** @param {Round} round @param {number} index */
function step(round, index) {
  const [element, chips] = [make("li", "", "step"), make("span", "", "chips")];
  chips.append(...renderChips(round));
  element.append(make("b", String(index + 1)), chips, make("small", roundNote(round)));
  return element;
}
