// The race view: reads the lines a run sends, plays them, and shows the conclusion and the figures at the end.

import { Share, closesItself } from "./files.js";
import { Intro } from "./intro.js";
import { Pane, duration } from "./pane.js";
import { Player, SIDES } from "./player.js";
import { SlowMotion } from "./slow_motion.js";

/** @typedef {import("./live_chart.js").LiveChart} LiveChart */
/** @typedef {import("./live_chart.js").Figure} Figure */
/** @typedef {import("./player.js").SideName} SideName */
/** @typedef {import("./player.js").Round} Round */
/**
 * The result of a run as the server writes it. Runs kept by earlier versions lack the optional properties.
 * @typedef {object} Result
 * @property {string} headline
 * @property {string} tone
 * @property {string} reason one sentence
 * @property {string} [warning] a warning in a few words
 * @property {string} [why] paragraphs as HTML: evidence, every warning, formulas
 * @property {string} [ceiling] the speedup of a perfect draft here
 * @property {Record<SideName, number>} [seconds] of both sides; their ratio is the headline's
 * @property {string} [difference] between them, in words
 * @property {string} agreement
 * @property {boolean} identical
 * @property {number | null} divergence
 * @property {boolean} stopped
 * @property {string} made_by
 * @property {string[]} words
 * @property {string} figures
 * @property {string | null} record
 */
/**
 * @typedef {object} Options
 * @property {new (element: HTMLElement, figure: Figure) => LiveChart} chart
 * @property {Record<string, Figure>} figures
 * @property {(event: string, data: object) => void} [trigger] fires an event of the widget
 */

export class Race {
  /**
   * @param {HTMLElement} element
   * @param {Options} options
   */
  constructor(element, { chart, figures, trigger = () => {} }) {
    /** @param {string} selector */
    const find = (selector) => /** @type {HTMLElement} */ (element.querySelector(selector));
    this.find = find;
    this.root = find(".race");
    const tip = find(".tip");
    this.panes = { plain: new Pane(find(".pane.plain"), tip), speculative: new Pane(find(".pane.speculative"), tip) };
    this.charts = {
      clock: new chart(find(".chart.clock"), figures.clock),
      acceptance: new chart(find(".chart.acceptance"), figures.acceptance),
    };
    this.player = new Player((player, rewound) => this.draw(player, rewound), () => this.ended());
    this.slow = new SlowMotion(find(".slow-motion"), () => trigger("select", {}));
    this.intro = new Intro(this.root);
    find(".toggle").addEventListener("click", () => this.toggle());
    find(".skip").addEventListener("click", () => this.player.skip());
    const speed = /** @type {HTMLSelectElement} */ (find(".speed"));
    speed.addEventListener("change", () => this.player.choose(Number(speed.value) || null));
    this.switches(".discarded-shown", "with-discarded");
    this.switches(".as-written", "raw");
    find(".rounds").addEventListener("click", () => this.slowly());
    closesItself(/** @type {HTMLDetailsElement} */ (find(".why")));
    const share = /** @type {HTMLDetailsElement | null} */ (element.querySelector(".share"));
    if (share) new Share(share, () => this.result?.record, trigger);
    this.begun = false; // whether there is a run
    this.run = "";
    this.read = 0; // events of the run
    /** @type {string[]} */ this.lines = [];
    /** @type {string[]} */ this.earlier = []; // lines of the run before, shown again if this one fails at once
    /** @type {Result | null} */ this.result = null;
    /** @type {string | null} */ this.failure = null;
    /** @type {{ round: number, text: string }[]} */ this.moves = []; // of settings
    /** @type {Record<SideName, string> | null} */ this.names = null; // set if the sides are two runs
    /** @type {Record<SideName, string>} */ this.prompts = { plain: "", speculative: "" };
    this.chat = this.served = false;
    this.history = "";
    /** @type {number | null} */ this.lead = null; // in tokens, at the moment the first side finished
    /** @type {string | null} */ this.marked = null; // the run whose divergence is marked
  }

  /**
   * @param {string} box
   * @param {string} name of the class that it sets
   */
  switches(box, name) {
    const input = /** @type {HTMLInputElement} */ (this.find(box));
    input.addEventListener("change", () => this.root.classList.toggle(name, input.checked));
  }

  /**
   * Read lines of events; those read before are skipped. The last update of a run has all of them.
   * @param {string | null | undefined} text
   */
  receive(text) {
    let news = false;
    const { result } = this;
    for (const line of (text ?? "").split("\n").filter(Boolean)) {
      const event = JSON.parse(line);
      if (event.at === 0 && (event.run !== this.run || !this.begun)) this.begin(event);
      else if (event.run === this.run && event.at === this.read) this.handle(event);
      else continue;
      this.read = event.at + 1;
      this.lines[event.at] = line;
      news = true;
    }
    if (!news) return;
    if (this.result?.record && result !== this.result) this.announce();
    if (!this.player.complete) this.player.received(Boolean(this.result ?? this.failure));
    else if (this.player.ended) this.ended(); // with the result of its repeats
  }

  /** @param {any} event */
  handle(event) {
    if (event.kind === "phase") this.phase(event.text);
    if (event.kind === "slice" || event.kind === "lap") { // "lap" in runs kept by earlier versions
      this.phase("");
      this.player.add(event.side, event.rounds, event.done);
      this.moves.push(...(event.moves ?? []));
    }
    if (event.kind === "end") this.result = event; // it comes again with the figures of repeats
    if (event.kind === "error") this.failure = event.text;
    if (event.kind === "end" || event.kind === "error") this.phase("");
  }

  /** Show a phase before the first token. @param {string} text */
  phase(text) {
    for (const pane of Object.values(this.panes)) pane.phase(text);
  }

  /** A run was requested, or is over; the earlier run stays until the new one begins. @param {boolean} busy */
  asked(busy) {
    const begun = this.root.dataset.state === "waiting" || this.root.dataset.state === "playing";
    if (!busy || !begun) this.phase(busy ? "Getting ready …" : "");
  }

  /** Announce a new or updated result. */
  announce() {
    const { lines, result } = this;
    this.root.dispatchEvent(new CustomEvent("finished", { detail: { lines, result } }));
  }

  /**
   * Begin a run. The event has `names` and `prompts` by side if its sides are two speculative runs.
   * @param {any} event
   */
  begin(event) {
    const earlier = this.result !== null;
    this.result = this.failure = null;
    this.begun = true;
    if (earlier) this.earlier = this.lines;
    this.lines = [];
    this.moves = [];
    this.names = event.names ?? null;
    this.prompts = event.prompts ?? { plain: event.prompt, speculative: event.prompt };
    const { run, chat = false, history = "", served = false } = event;
    Object.assign(this, { run, chat, history, served });
    for (const side of SIDES) {
      const name = this.names?.[side] ?? side;
      this.find(`.pane.${side} h2`).textContent = name[0].toUpperCase() + name.slice(1);
      for (const place of [`.track.${side} span`, `.key.${side}`]) this.find(place).textContent = name;
    }
    this.root.classList.toggle("overlaid", this.names !== null);
    this.player.reset({ limit: event.max_new_tokens, sequential: event.sequential });
    this.root.dataset.state = "waiting";
    this.root.dataset.tone = "";
    this.intro.show(false);
    this.root.classList.toggle("chat", Boolean(chat));
    this.find(".figures").textContent = "";
    if (this.find(".conclusion").getBoundingClientRect().top < 0) scrollTo({ top: 0 });
    this.clear();
  }

  clear() {
    this.lead = null;
    this.marked = null;
    this.slow.close();
    for (const side of SIDES) this.panes[side].reset(this.prompts[side], this.chat, this.history);
    for (const chart of Object.values(this.charts)) chart.reset(this.run);
    this.say("");
    this.race(this.player);
  }

  /** Start a new chat: the sides show their explanations again. */
  anew() {
    this.begin({ run: "", prompt: "", max_new_tokens: 0 });
    this.begun = false;
    this.root.dataset.state = "idle";
    this.intro.welcome();
    for (const pane of Object.values(this.panes)) pane.explainItself();
    this.say(this.intro.invitation);
  }

  /** @param {string} text */
  say(text) {
    if (this.find(".reason").textContent === text) return; // a live region: repeat nothing
    this.find(".reason").textContent = text;
    for (const name of ["agreement", "ceiling", "grounds", "warning", "made-by"]) this.find(`.${name}`).textContent = "";
  }

  /**
   * @param {Player} player
   * @param {boolean} rewound
   */
  draw(player, rewound) {
    if (rewound) this.clear();
    if (this.root.dataset.state !== "playing") {
      this.root.dataset.state = "playing";
      this.root.dataset.tone = "";
    }
    this.root.dataset.live = String(player.factor === null || (player.live && !player.complete));
    this.say(this.pace(player));
    for (const name of SIDES) {
      const rounds = player.take(name);
      this.panes[name].append(rounds, player.at(name).ms);
      this.plot(name, rounds, player);
    }
    this.race(player);
    this.find(".toggle").textContent = player.playing ? "Pause" : "Play";
  }

  /**
   * @param {SideName} name
   * @param {Round[]} rounds
   * @param {Player} player
   */
  plot(name, rounds, player) {
    if (!rounds.length) return;
    /** @type {[number, number][]} */
    const points = rounds.map((round) => [round.ms / 1000, round.tokens]);
    this.charts.clock.add(name === "plain" ? [points, []] : [[], points]);
    if (name === "plain") return this.plotOther(rounds, player);
    const first = player.sides[name].shown - rounds.length;
    for (const { round, text } of this.moves) {
      if (round < first || round >= first + rounds.length) continue;
      this.charts.clock.mark((player.sides[name].rounds[round - 1]?.ms ?? 0) / 1000, text);
      this.charts.acceptance.mark(round - 0.5, text);
    }
    /** @type {[number, Round][]} */
    const numbered = rounds.map((round, index) => [first + index, round]);
    const judged = numbered.filter(([number, round]) => number > 0 && round.proposed !== null);
    this.charts.acceptance.add([
      judged.map(([number, round]) => [number, round.accepted]),
      judged.map(([number, round]) => [number, (round.proposed ?? 0) - round.accepted]),
      judged.map(([number, round]) => [number, round.alpha]),
      [],
    ]);
  }

  /**
   * The running α of a second speculative run.
   * @param {Round[]} rounds
   * @param {Player} player
   */
  plotOther(rounds, player) {
    if (!this.names) return;
    const first = player.sides.plain.shown - rounds.length;
    /** @type {[number, number | null][]} */
    const points = rounds.map(({ alpha }, index) => [first + index, alpha]);
    this.charts.acceptance.add([[], [], [], points.filter(([number]) => number > 0)]);
  }

  /** Show the race on the bars, as tokens of the limit. @param {Player} player */
  race(player) {
    const at = { plain: player.at("plain"), speculative: player.at("speculative") };
    for (const side of SIDES) {
      const { tokens, ms, finished } = at[side];
      const count = finished ? `${tokens} tokens` : `${tokens} of ${player.limit}`;
      this.bar(side, player.limit ? tokens / player.limit : 0, tokens ? `${count} · ${duration(ms)}` : "", finished);
    }
    if (player.factor === null || (player.sequential && player.live)) return; // they do not run side by side yet, or at all
    const lead = this.lead ?? at.speculative.tokens - at.plain.tokens;
    if (at.plain.finished || at.speculative.finished) this.lead = lead;
    const sign = lead > 0 ? "+" : "−";
    this.find(".headline").textContent = lead ? `${sign}${Math.abs(lead)} token${Math.abs(lead) === 1 ? "" : "s"}` : "";
    if (this.root.dataset.state === "playing") this.root.dataset.tone = lead > 0 ? "faster" : lead < 0 ? "slower" : "";
  }

  /**
   * Show the times on the bars at the finish, and the difference in words.
   * @param {Record<SideName, number>} seconds
   * @param {string} difference
   */
  finish(seconds, difference) {
    const longest = Math.max(...Object.values(seconds));
    for (const side of SIDES) {
      const text = [duration(1000 * seconds[side]), side === "speculative" && difference].filter(Boolean).join(" · ");
      this.bar(side, longest ? seconds[side] / longest : 0, text, true);
    }
  }

  /**
   * @param {SideName} side
   * @param {number} share of the whole length
   * @param {string} text
   * @param {boolean} finished
   */
  bar(side, share, text, finished) {
    const track = this.find(`.track.${side}`);
    /** @type {HTMLElement} */ (track.querySelector("i")).style.width = `${100 * share}%`;
    /** @type {HTMLElement} */ (track.querySelector("output")).textContent = text;
    track.classList.toggle("finished", finished);
  }

  /** @param {Player} player */
  pace(player) {
    if (player.factor === null) return "";
    if (player.live && !player.complete && this.served) return "Live, one slice behind: each side as its server's answer arrives.";
    if (player.live && !player.complete) return "Live, one slice behind: the sides take turns on this machine, and each clock counts only its own time.";
    if (player.factor === 1) return "Played in real time, each side on its own clock.";
    const long = player.complete ? player.total() : player.expected() ?? 0;
    return `Played back ${player.factor}× slower than it ran: ${duration(long)} of computation, shown in ${duration(long * (player.factor ?? 1))}.`;
  }

  ended() {
    for (const chart of Object.values(this.charts)) setTimeout(() => chart.flush());
    this.find(".toggle").textContent = "Replay";
    const { result } = this;
    this.root.dataset.state = result ? "done" : "failed";
    if (!result) return this.failed();
    this.root.dataset.tone = result.tone;
    const share = this.root.querySelector(".share");
    if (share instanceof HTMLElement) share.hidden = !result.record;
    this.find(".headline").textContent = result.headline;
    this.find(".ceiling").textContent = result.ceiling ?? "";
    this.find(".reason").textContent = result.stopped ? `Stopped early. ${result.reason}` : result.reason;
    this.find(".warning").textContent = this.find(".warning").title = result.warning ?? "";
    this.find(".grounds").innerHTML = result.why ?? ""; // escaped by the server
    this.find(".why").hidden = !result.why;
    this.find(".agreement").textContent = result.agreement && `${result.identical ? "✓" : "≠"} ${result.agreement}`;
    this.find(".agreement").dataset.identical = String(result.identical);
    this.find(".made-by").textContent = result.made_by;
    this.find(".figures").innerHTML = result.figures; // escaped by the server
    if (result.seconds) this.finish(result.seconds, result.difference ?? "");
    if (this.marked === this.run) return;
    this.marked = this.run;
    for (const pane of Object.values(this.panes)) pane.mark(result.divergence);
  }

  /** Show the text decoded before the failure; without any, the run before, if there was one. */
  failed() {
    const shown = SIDES.some((side) => this.player.sides[side].rounds.length);
    if (!shown && this.earlier.length) {
      this.receive(this.earlier.join("\n"));
      return this.player.skip();
    }
    this.say(shown ? "The run failed. The text decoded before is shown below." : this.failure ?? "");
  }

  toggle() {
    if (!this.begun) return;
    if (this.player.playing) this.player.pause();
    else this.player.play();
  }

  /** Open the slow motion of the run's first rounds. */
  slowly() {
    this.slow.open(this.player.sides.speculative.rounds, this.prompts.speculative + (this.chat ? "\n" : ""));
  }
}
