// One side's text: rounds are appended as they arrive; tokens show details on hover, focus and arrow keys.

import { copy } from "./files.js";
import { TIPS } from "./glossary.js";
import { make, part, renderRound } from "./rounds.js";

export class Pane {
  /** @param {HTMLElement} element @param {SideName} side */
  constructor(element, side) {
    this.side = side;
    this.source = "measured"; // of the proposals
    this.text = part(element, ".text");
    this.facts = /** @type {NodeListOf<HTMLElement>} */ (element.querySelectorAll("[data-fact]"));
    this.status = part(element, ".phase");
    /** @type {Timed | null} */ this.last = null;
    this.following = true; // scrolled to the end, unless the reader scrolls up
    const button = part(element, ".copy");
    button.addEventListener("click", () => copy(button, this.answer()));
    new ResizeObserver(() => this.scroll()).observe(this.text);
    for (const kind of ["wheel", "touchmove"]) this.text.addEventListener(kind, () => this.follow(), { passive: true });
    this.text.addEventListener("keydown", (event) => this.move(event));
  }

  /** Show a chat's earlier turns and the prompt. @param {string} prompt @param {boolean} chat @param {Turn[]} history */
  reset(prompt, chat, history = []) {
    this.following = true;
    this.text.replaceChildren();
    this.text.append(...history.flatMap((turn) => [make("span", turn.prompt, "said"), make("span", turn.answer, "answer")]));
    if (prompt.trim()) this.text.append(make("span", prompt, chat ? "prompt said" : "prompt"));
    this.show(0, null);
    this.scroll();
  }

  /** The answer as it is written. */
  answer() {
    return [...this.text.querySelectorAll(".round > [data-index]")].map((piece) => piece.textContent).join("").trim();
  }

  /** Scroll to the end, unless the reader has scrolled up. */
  scroll() {
    if (this.following) this.text.scrollTop = 1e9;
  }

  follow() {
    const { scrollTop, clientHeight, scrollHeight } = this.text;
    this.following = scrollTop + clientHeight >= scrollHeight - 40;
  }

  /** Append rounds that became visible, `ms` into the run. @param {Timed[]} rounds @param {number} ms */
  append(rounds, ms) {
    const last = rounds.at(-1);
    if (!last) return this.show(ms);
    for (const round of rounds) (round.thinking ? this.thoughts() : this.text).append(renderRound(round, this));
    for (const summary of this.text.querySelectorAll(".thinking summary")) {
      summary.textContent = `Thinking, ${counted(this.thoughts().querySelectorAll("[data-index]").length)}`;
    }
    this.scroll();
    this.show(ms, last);
  }

  /** The folded part of the text. */
  thoughts() {
    const place = this.text.querySelector(".thinking") ?? this.text.appendChild(make("details", "", "thinking"));
    if (!place.firstChild) place.append(make("summary"));
    return place;
  }

  /** Show the figures `ms` into the run. @param {number} ms @param {Timed | null} round the last one that is visible */
  show(ms, round = this.last) {
    this.last = round;
    for (const fact of this.facts) {
      const name = /** @type {"rate" | "alpha" | "ms"} */ (fact.dataset.fact);
      fact.textContent = name !== "ms" ? formatted(name, round?.[name]) : ms ? duration(ms) : "–";
      fact.dataset.value = String(ms);
    }
  }

  /** At the end of a run, go to the start of its answer, or mark the token where the outputs diverge and go there. @param {number | null} index of the token */
  mark(index) {
    const token = /** @type {HTMLElement | null} */ (this.text.querySelector(`[data-index="${index}"]`));
    token?.classList.add("diverges");
    token?.closest(".thinking")?.setAttribute("open", "");
    const tip = token && TIPS.get(token);
    if (token) TIPS.set(token, () => `${tip?.()}\nthe outputs diverge here`);
    const place = token ?? /** @type {HTMLElement | null} */ (this.following ? this.text.querySelector(".thinking, .round") : null);
    if (place) this.text.scrollTop = place.offsetTop - this.text.offsetTop - 90; // below a short prompt; both panes alike
    this.following = false;
  }

  /** Arrow keys move through the tokens; the Tab key stops once at the text. @param {KeyboardEvent} event */
  move(event) {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    const all = /** @type {NodeListOf<HTMLElement>} */ (this.text.querySelectorAll(".token"));
    const tokens = [...all].filter((token) => token.offsetParent);
    const at = tokens.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const next = tokens[Math.min(Math.max(at + step, 0), tokens.length - 1)];
    if (!next) return;
    next.tabIndex = -1;
    next.focus();
    event.preventDefault();
  }
}

/** @param {number} tokens */
export const counted = (tokens) => `${tokens} token${tokens === 1 ? "" : "s"}`;

/** @param {"rate" | "alpha"} name @param {number | null | undefined} value */
export function formatted(name, value) {
  if (value === null || value === undefined) return "–";
  if (name === "alpha") return `${Math.round(100 * value)} %`;
  return value >= 100 ? value.toFixed(0) : value.toFixed(1);
}

/** Milliseconds in the unit that suits them. @param {number} ms */
export function duration(ms) {
  const seconds = ms / 1000;
  if (seconds < 1) return `${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
  if (seconds < 100) return `${seconds.toFixed(seconds < 10 ? 2 : seconds < 60 ? 1 : 0)} s`;
  const rounded = Math.round(seconds);
  return `${Math.floor(rounded / 60)} min ${rounded % 60} s`;
}
