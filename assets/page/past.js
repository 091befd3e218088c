// The reader's last runs, kept in this browser only: to reopen, search, or compare two of them.

import { pack, unpack } from "./files.js";
import { Stored, isObject, isText } from "./storage.js";

/** @typedef {import("./race.js").Race} Race */
/** @typedef {import("./race.js").Result} Result */
/**
 * A kept run; `events` are its lines, packed.
 * @typedef {{ run: string, when: number, prompt: string, headline: string, made_by: string, words: string[], events: string }} Run
 */

const MOST_RUNS = 40;
const RESET = "The runs kept in this browser were damaged, so their list was reset.";

/** The valid runs in a kept value; null if it is not a list. @param {unknown} value */
export function runsIn(value) {
  if (!Array.isArray(value)) return null;
  return /** @type {Run[]} */ (value.filter(isRun));
}

/** @param {unknown} value */
function isRun(value) {
  if (!isObject(value)) return false;
  const texts = [value.run, value.prompt, value.headline, value.made_by, value.events].every(isText);
  return texts && Number.isFinite(value.when) && Array.isArray(value.words) && value.words.every(isText);
}

export class Past {
  /**
   * Shows the kept runs in `element`, and plays them in `race`.
   * @param {HTMLElement} element
   * @param {Race} race
   */
  constructor(element, race) {
    this.element = element;
    this.race = race;
    this.kept = new Stored("specdemo-runs", runsIn, /** @type {Run[]} */ ([]));
    /** The run that this tab shows, and shows again after a reload, whatever other tabs ran since. */
    this.shown = new Stored("specdemo-run", (value) => (isText(value) ? String(value) : null), "", () => sessionStorage);
    /** @type {string[]} */ this.chosen = [];
    this.list = /** @type {HTMLElement} */ (element.querySelector("ol"));
    this.search = /** @type {HTMLInputElement} */ (element.querySelector("input[type=search]"));
    this.overlay = /** @type {HTMLButtonElement} */ (element.querySelector(".overlay"));
    this.none = /** @type {HTMLElement} */ (element.querySelector(".none"));
    race.root.addEventListener("finished", (event) => {
      const { lines, result } = /** @type {CustomEvent} */ (event).detail;
      this.keep(lines, result);
    });
    this.search.addEventListener("input", () => this.draw());
    this.overlay.addEventListener("click", () => this.compare());
    element.querySelector(".forget")?.addEventListener("click", () => this.write([]));
    this.list.addEventListener("click", (event) => this.clicked(event));
    this.list.addEventListener("change", ({ target }) => {
      if (target instanceof HTMLInputElement) this.choose(target.value, target.checked);
    });
    addEventListener("storage", ({ key }) => key === this.kept.key && this.draw()); // another tab's
    this.draw();
  }

  /** Newest first. */
  read() {
    return this.kept.read();
  }

  /** Store as many as the browser has room for. @param {Run[]} runs */
  write(runs) {
    let kept = runs.slice(0, MOST_RUNS);
    while (!this.kept.write(kept) && kept.length) kept = kept.slice(0, -1);
    this.draw(kept);
  }

  /**
   * @param {string[]} lines
   * @param {Result} result
   */
  async keep(lines, result) {
    const { run, prompt } = JSON.parse(lines[0]);
    const { headline, made_by, words } = result;
    this.shown.write(run);
    const events = await pack(lines.join("\n"));
    const runs = this.read();
    const others = runs.filter((other) => other.run !== run);
    const when = runs.find((other) => other.run === run)?.when ?? Date.now();
    this.kept.reset = false;
    this.write([{ run, when, prompt, headline, made_by, words, events }, ...others].sort((a, b) => b.when - a.when));
  }

  /** @param {Run[]} runs */
  draw(runs = this.read()) {
    const wanted = this.search.value.trim().toLowerCase();
    const found = runs.filter(({ prompt, headline, made_by }) => `${prompt} ${headline} ${made_by}`.toLowerCase().includes(wanted));
    this.element.hidden = !runs.length && !this.kept.reset;
    this.chosen = this.chosen.filter((run) => runs.some((other) => other.run === run));
    this.list.replaceChildren(...found.map((run) => this.row(run)));
    this.none.textContent = this.kept.reset ? RESET : runs.length ? "No runs match." : "No runs yet.";
    this.none.hidden = found.length > 0 && !this.kept.reset;
    this.overlay.disabled = this.chosen.length !== 2;
  }

  /** @param {Run} kept */
  row({ run, when, prompt, headline, made_by }) {
    const template = /** @type {HTMLTemplateElement} */ (this.element.querySelector("template"));
    const row = /** @type {HTMLElement} */ (template.content.firstElementChild?.cloneNode(true));
    /** @param {string} selector */
    const find = (selector) => /** @type {HTMLElement} */ (row.querySelector(selector));
    row.dataset.run = run;
    Object.assign(find("input"), { value: run, checked: this.chosen.includes(run), ariaLabel: `Choose ${prompt} to compare` });
    find("b").textContent = headline;
    find(".open span").textContent = prompt;
    find("small").textContent = `${new Date(when).toLocaleString()} · ${made_by}`;
    return row;
  }

  /**
   * Tick or untick a run; only the latest two stay ticked.
   * @param {string} run
   * @param {boolean} chosen
   */
  choose(run, chosen) {
    const others = this.chosen.filter((other) => other !== run);
    this.chosen = chosen ? [...others, run].slice(-2) : others;
    this.draw();
  }

  /** @param {Event} event */
  clicked({ target }) {
    if (!(target instanceof Element)) return;
    const row = /** @type {HTMLElement | null} */ (target.closest("li"));
    const run = row?.dataset.run ?? "";
    if (target.closest(".open")) this.open(run);
    if (target.closest(".drop")) this.write(this.read().filter((other) => other.run !== run));
  }

  /** The lines of a run; if they cannot be unpacked, none, and the run is dropped. @param {string} run */
  async lines(run) {
    const kept = this.read().find((other) => other.run === run);
    try {
      const lines = (await unpack(kept?.events ?? "")).split("\n").filter(Boolean);
      lines.forEach((line) => JSON.parse(line));
      return lines;
    } catch {
      this.kept.reset = true;
      this.write(this.read().filter((other) => other.run !== run));
      return [];
    }
  }

  /** Show this tab's last run, or the last of all tabs, at its end; unless something has run on this page. */
  async last() {
    const runs = this.read();
    const latest = runs.find(({ run }) => run === this.shown.read()) ?? runs[0];
    if (!latest) return;
    const lines = await this.lines(latest.run);
    if (this.race.begun || !lines.length) return;
    this.race.receive(lines.join("\n"));
    this.race.player.skip();
  }

  /** @param {string} run */
  async open(run) {
    this.shown.write(run);
    this.show(await this.lines(run));
  }

  /** @param {string[]} lines */
  show(lines) {
    if (!lines.length) return;
    this.race.receive(lines.join("\n"));
    this.race.root.scrollIntoView({ block: "start" });
  }

  /** The speculative sides of two runs, the earlier one in the place of plain decoding. */
  async compare() {
    const order = this.read().map(({ run }) => run).filter((run) => this.chosen.includes(run)).reverse();
    const all = await Promise.all(order.map((run) => this.lines(run)));
    if (all.some((lines) => !lines.length)) return;
    this.show(overlaid(all.map((lines) => lines.map((line) => JSON.parse(line)))).map((event) => JSON.stringify(event)));
  }
}

/**
 * Merge the events of two runs into one run whose sides are their speculative sides.
 * @param {any[][]} runs
 * @returns {any[]}
 */
export function overlaid(runs) {
  const [first, second] = runs.map((events) => ({ start: events[0], end: events.at(-1), slices: events.filter(({ side }) => side === "speculative") }));
  const names = distinct(difference(first, second), difference(second, first));
  const events = [
    {
      ...second.start,
      max_new_tokens: Math.max(first.start.max_new_tokens, second.start.max_new_tokens),
      sequential: false,
      prompts: { plain: first.start.prompt, speculative: second.start.prompt },
      names: { plain: names[0], speculative: names[1] },
    },
    ...first.slices.map((slice) => ({ ...slice, side: "plain" })),
    ...second.slices,
    { ...second.end, ...conclusion(first, second) },
  ];
  const run = `${first.start.run} ${second.start.run}`;
  return events.map((event, at) => ({ ...event, at, run }));
}

/** The settings or the prompt in which a run differs from the other. @param {any} run @param {any} other */
function difference(run, other) {
  const words = run.end.words.filter((/** @type {string} */ word) => !other.end.words.includes(word)).join(", ");
  if (words) return words;
  return run.start.prompt === other.start.prompt ? run.end.words[0] : short(run.start.prompt);
}

/** @param {string} first @param {string} second */
function distinct(first, second) {
  return first === second ? [`${first}, earlier`, `${second}, later`] : [first, second];
}

/** @param {string} text */
function short(text) {
  return text.length > 36 ? `“${text.slice(0, 35).trimEnd()}…”` : `“${text}”`;
}

/** Outputs of different prompts are not compared. @param {any} one @param {any} other */
function conclusion(one, other) {
  const [first, second] = [one.end, other.end];
  const headlines = [first, second].map(({ headline }) => headline.split("×")[0] + (headline.includes("×") ? "×" : ""));
  const alike = one.start.prompt === other.start.prompt;
  const [left, right] = [first, second].map(({ record }) => JSON.parse(record).speculative.token_ids);
  const shared = Math.min(left.length, right.length);
  const differs = left.slice(0, shared).findIndex((/** @type {number} */ id, /** @type {number} */ index) => id !== right[index]);
  const agreement = differs < 0 ? `identical output, ${shared} tokens compared` : `outputs differ from token ${differs + 1} on`;
  return {
    headline: [...new Set(headlines)].join(" · "),
    tone: "same",
    reason: "Two speculative runs, each compared with its own plain run.",
    why: "",
    warning: "",
    ceiling: "",
    seconds: null,
    agreement: alike ? agreement : "",
    identical: differs < 0,
    divergence: differs < 0 || !alike ? null : differs,
    made_by: `Left: ${first.headline}, ${first.made_by} Right: ${second.headline}, ${second.made_by}`,
    stopped: false,
    figures: `<div class="two"><div>${first.figures}</div><div>${second.figures}</div></div>`,
    record: null,
  };
}
