// The first rounds of a run in slow motion: the draft guesses, the target checks all guesses in one pass, accepted ones
// stay, and a correction or bonus token follows. It reads the rounds that the panes show, so it works with any engine.

/** @typedef {import("./player.js").Round} Round */
/** @typedef {{ text: string, kind: string, odds: string, reported: boolean }} Guess */
/** @typedef {{ guesses: Guess[], own: string[], committed: string }} Step */

const ROUNDS = 12; // enough to follow; Anatomy has all
const STAGES = ["guess", "check", "keep"];
const STAGE_MS = 1100;

export class SlowMotion {
  /**
   * @param {HTMLElement} element
   * @param {() => void} onAll opens all rounds
   */
  constructor(element, onAll) {
    this.element = element;
    /** @type {Step[]} */ this.steps = [];
    this.before = ""; // text before the first round
    this.at = 0;
    this.stage = 0;
    /** @type {ReturnType<typeof setTimeout> | undefined} */ this.timer = undefined;
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.find(".previous").addEventListener("click", () => this.go(this.at - 1));
    this.find(".next").addEventListener("click", () => this.forward());
    this.find(".close").addEventListener("click", () => this.close());
    element.querySelector(".all")?.addEventListener("click", onAll);
    element.addEventListener("keydown", (event) => this.key(event));
  }

  /** @param {string} selector */
  find(selector) {
    return /** @type {HTMLElement} */ (this.element.querySelector(selector));
  }

  /**
   * @param {Round[]} rounds the prefill first
   * @param {string} before the prompt, and what parts it from the answer
   */
  open(rounds, before) {
    const [prefill, ...others] = rounds;
    this.steps = others.slice(0, ROUNDS).map((round) => stepOf(round.html));
    this.before = before + (prefill ? stepOf(prefill.html).committed : "");
    this.element.hidden = false;
    this.go(0);
    this.find(".next").focus({ preventScroll: true });
  }

  close() {
    clearTimeout(this.timer);
    this.element.hidden = true;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const { key } = event;
    if (key === "Escape") this.close();
    else if (key === "ArrowRight") this.forward();
    else if (key === "ArrowLeft") this.go(this.at - 1);
    else return;
    event.preventDefault();
  }

  /** Finish this round's stages, or go to the next round. */
  forward() {
    if (this.stage < STAGES.length - 1) this.show(STAGES.length - 1);
    else this.go(this.at + 1);
  }

  /** @param {number} at */
  go(at) {
    if (at >= this.steps.length && this.steps.length) return this.close();
    this.at = Math.max(at, 0);
    this.draw();
    this.show(this.still.matches ? STAGES.length - 1 : 0);
  }

  /** @param {number} stage */
  show(stage) {
    clearTimeout(this.timer);
    this.stage = stage;
    this.element.dataset.stage = STAGES[stage];
    this.find(".saying").textContent = this.steps.length ? saying(this.steps[this.at], stage) : "This run has no rounds: it ended at its first token.";
    if (stage < STAGES.length - 1) this.timer = setTimeout(() => this.show(stage + 1), STAGE_MS);
  }

  draw() {
    const step = this.steps[this.at];
    const last = this.at === this.steps.length - 1;
    this.find(".place").textContent = step ? `Round ${this.at + 1}` : "";
    /** @type {HTMLButtonElement} */ (this.find(".previous")).disabled = this.at === 0;
    this.find(".next").textContent = last || !step ? "Done" : "Next";
    const text = this.before + this.steps.slice(0, this.at).map(({ committed }) => committed).join("");
    this.find(".before").textContent = text.length > 160 ? `… ${text.slice(-160)}` : text;
    const chips = step ? [...step.guesses.map(chip), ...step.own.map((own) => chip({ text: own, kind: "own", odds: "", reported: true }))] : [];
    chips.forEach((element, index) => element.style.setProperty("--order", String(index)));
    this.find(".chips").replaceChildren(...chips);
  }
}

/**
 * Read a round from its HTML: its guesses in order, each with its outcome, then the correction or bonus token.
 * @param {string} html as the panes show it, escaped by the server
 * @returns {Step}
 */
export function stepOf(html) {
  const round = new DOMParser().parseFromString(html, "text/html").querySelector(".round");
  /** @type {Step} */
  const step = { guesses: [], own: [], committed: "" };
  for (const token of round?.querySelectorAll(".token") ?? []) {
    const text = token.textContent ?? "";
    const kind = ["accepted", "rejected", "discarded"].find((name) => token.classList.contains(name));
    if (token.hasAttribute("data-index")) step.committed += text;
    if (!kind) {
      step.own.push(text);
      continue;
    }
    const odds = (token.getAttribute("data-tip") ?? "").match(/^draft's probability ([\d.]+)/m);
    step.guesses.push({ text, kind, odds: odds ? `${Math.round(100 * Number(odds[1]))} % sure` : "", reported: text !== "?" });
  }
  return step;
}

/** @param {Guess} guess */
function chip({ text, kind, odds }) {
  const element = document.createElement("span");
  element.className = `chip ${kind}`;
  const token = Object.assign(document.createElement("span"), { className: `token ${kind}`, textContent: text.replaceAll("\n", "↵") || "·" });
  element.append(token);
  if (odds) element.append(Object.assign(document.createElement("small"), { textContent: odds }));
  return element;
}

/**
 * @param {Step} step
 * @param {number} stage
 */
function saying({ guesses, own }, stage) {
  const accepted = guesses.filter(({ kind }) => kind === "accepted").length;
  const all = ["none", "it", "both"][guesses.length] ?? `all ${guesses.length}`;
  const number = guesses.length === 1 ? "1 token" : `${guesses.length} tokens, one after the other`;
  if (!guesses.length) return "Nothing was guessed in this round, so the target wrote one token, as in plain decoding.";
  const unknown = guesses.some(({ reported }) => !reported) ? " This engine does not report the rejected tokens." : "";
  if (stage === 0) return `The draft guesses ${number}.`;
  if (stage === 1) return `The target checks ${all} in one pass.`;
  const first = accepted === 1 ? "the first" : `the first ${accepted}`;
  const none = guesses.length === 1 ? "It rejects it" : "It keeps none";
  const kept = accepted === guesses.length ? `It keeps ${all}` : accepted ? `It keeps ${first}` : none;
  const name = guesses.some(({ kind }) => kind === "rejected") ? "correction token" : "bonus token";
  const added = own.length ? ` and adds ${own.length === 1 ? `a ${name}` : `${own.length} tokens of its own`}` : "";
  return `${kept}${added}: ${accepted + own.length} token${accepted + own.length === 1 ? "" : "s"} for one pass.${unknown}`;
}
