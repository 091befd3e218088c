// The race view: reads the lines that a run sends, plays them, and shows the conclusion and the figures at the end.
// A finished run is one record, whether it has just ended, was kept, was opened from a file, or is a replay.

import { Chart } from "./chart.js";
import { shares } from "./files.js";
import { meaningOf } from "./glossary.js";
import { Pane, counted, duration } from "./pane.js";
import { Player } from "./player.js";
import { SIDES, make } from "./rounds.js";

/** @typedef {import("./rounds.js").SideName} SideName */
/** @typedef {import("./rounds.js").Timed} Timed */
/** @typedef {{ prefill: import("./rounds.js").Round, rounds: import("./rounds.js").Round[], finish_reason: string }} Run */
/** A comparison as `exports/schema.py` writes it; before its end, without sides and summary. @typedef {any} Comparison */
/** @typedef {{ run: string, record: Comparison, anatomy: any }} Finished */

const axis = (/** @type {string} */ title) => ({ title });
const line = (/** @type {string} */ name, /** @type {string} */ colour, style = {}, more = {}) => ({ name, mode: "lines", line: { color: `var(--sd-${colour})`, width: 2.5, ...style }, ...more });
const bar = (/** @type {string} */ name, /** @type {string} */ colour) => ({ type: "bar", name, marker: { color: `var(--sd-${colour})` } });
/** Tokens against each side's own clock; and proposals by round, with the acceptance rate so far. The cards' headings explain the colours. */
const CHARTS = {
  clock: { data: [line("plain", "plain", { dash: "dot", shape: "hv" }), line("speculative", "accepted", { shape: "hv" })], layout: { xaxis: axis("seconds of computing"), yaxis: axis("tokens"), showlegend: false } },
  acceptance: {
    data: [bar("accepted", "accepted"), bar("not accepted", "refused"), line("α", "ink", { width: 2 }, { yaxis: "y2" })],
    layout: { barmode: "stack", showlegend: false, xaxis: axis("round"), yaxis: axis("proposals"), yaxis2: { title: "α", range: [0, 1.02], tickvals: [0, 0.5, 1] } },
  },
};

export class Race {
  /** @param {HTMLElement} element @param {(event: string, data: object) => void} trigger fires an event of the widget */
  constructor(element, trigger = () => {}) {
    /** @param {string} selector */
    const find = (selector) => /** @type {HTMLElement} */ (element.querySelector(selector));
    this.find = find;
    this.root = find(".race");
    this.charts = { clock: new Chart(find(".chart.clock"), CHARTS.clock), acceptance: new Chart(find(".chart.acceptance"), CHARTS.acceptance) };
    this.panes = { plain: new Pane(find(".pane.plain"), "plain"), speculative: new Pane(find(".pane.speculative"), "speculative") };
    this.player = new Player((player, rewound) => this.draw(player, rewound), () => this.ended());
    find(".toggle").addEventListener("click", () => this.toggle());
    find(".skip").addEventListener("click", () => this.player.skip());
    const speed = /** @type {HTMLSelectElement} */ (find(".speed"));
    speed.addEventListener("change", () => this.player.choose(Number(speed.value) || null));
    const discarded = /** @type {HTMLInputElement} */ (find(".discarded-shown"));
    discarded.addEventListener("change", () => this.root.classList.toggle("with-discarded", discarded.checked));
    element.querySelector(".rounds")?.addEventListener("click", () => trigger("select", {}));
    if (element.querySelector(".share")) shares(find(".share"), find("#share-menu"), () => this.finished?.record, trigger);
    this.run = this.first = ""; // `first`: the headline before repeats
    /** @type {Set<string>} */ this.begun = new Set(); // runs, with this one
    this.read = -1; // number of the last event of the run
    /** @type {Comparison | null} */ this.request = null; // what is compared
    /** @type {Finished | null} */ this.finished = null;
    /** @type {string | null} */ this.failure = null;
    /** @type {any[]} */ this.moves = []; // of settings
    /** @type {number | null} */ this.lead = null; // in tokens, at the moment the first side finished
    /** @type {string | null} */ this.marked = null; // the run whose divergence is marked
  }

  /** Read lines of events, of which each update repeats some. @param {string | null | undefined} text */
  receive(text) {
    let news = false;
    const { finished } = this;
    for (const json of (text ?? "").split("\n").filter(Boolean)) {
      const event = JSON.parse(json);
      // known already; or an earlier run's, whose repeats have ended; or of a run whose start was missed
      if (event.run === this.run ? event.at <= this.read : this.begun.has(event.run) || !event.record) continue;
      if (event.run !== this.run) this.begin(event.run, event.record);
      this.read = event.at;
      this.handle(event);
      news = true;
    }
    if (!news) return;
    if (this.finished && finished !== this.finished) this.root.dispatchEvent(new CustomEvent("finished", { detail: this.finished }));
    if (!this.player.complete) this.player.received(Boolean(this.finished ?? this.failure));
    else if (this.player.ended) this.ended(); // with the result of its repeats
  }

  /** Show a finished run from its beginning. @param {Finished} finished */
  open(finished) {
    this.run = "";
    this.begun.delete(finished.run);
    this.receive(JSON.stringify({ ...finished, at: 0, kind: "end" }));
  }

  /** @param {any} event */
  handle(event) {
    if (event.kind === "phase") return this.phase(event.text);
    if (event.kind === "start") return;
    this.phase("");
    if (event.kind === "slice") {
      this.panes[/** @type {SideName} */ (event.side)].source = event.source;
      this.player.add(event.side, event.rounds, event.done);
      this.moves.push(...event.moves);
    }
    if (event.kind === "end") {
      const { run, record, anatomy } = event;
      this.first ||= record.summary.headline;
      this.finished = { run, record, anatomy }; // it comes again with the figures of repeats
      this.moves = record.moves;
      this.panes.speculative.source = record.trace_source;
      for (const side of SIDES) this.player.finish(side, roundsOf(record[side]), record[side].draft_counts);
    }
    if (event.kind === "error") this.failure = event.text;
  }

  /** Show a phase before the first token. @param {string} text */
  phase(text) {
    for (const pane of Object.values(this.panes)) pane.phase(text);
  }

  /** A run was requested, or is over; until it begins, nothing of the earlier one is read as its own. @param {boolean} busy */
  asked(busy) {
    if (busy && this.finished) this.player.skip(); // of what still plays
    this.root.classList.toggle("asked", busy);
    this.phase(busy ? "Getting ready …" : "");
  }

  /** @param {string} run @param {Comparison} request */
  begin(run, request) {
    this.finished = this.failure = null;
    this.begun.add(run);
    Object.assign(this, { run, request, moves: [], read: -1, first: "" });
    const { settings, pair } = request;
    const remote = pair.target.server !== null;
    this.player.reset({ limit: settings.max_new_tokens, sequential: settings.sequential || remote });
    this.root.classList.remove("asked");
    this.root.classList.toggle("chat", isChat(request));
    this.root.dataset.state = "waiting";
    this.root.dataset.tone = "";
    this.find(".figures").replaceChildren();
    if (this.find(".conclusion").getBoundingClientRect().top < 0) scrollTo({ top: 0 });
    this.clear();
  }

  clear() {
    this.lead = this.marked = null;
    const { prompt, history } = /** @type {Comparison} */ (this.request);
    const chat = isChat(this.request);
    for (const side of SIDES) this.panes[side].reset(prompt, chat, history);
    for (const chart of Object.values(this.charts)) chart.reset();
    this.say("");
    this.race(this.player);
  }

  /** @param {string} text */
  say(text) {
    if (this.find(".reason").textContent === text) return; // a live region: repeat nothing
    this.find(".reason").textContent = text;
    for (const name of ["agreement", "range", "grounds", "apart", "warning", "made-by"]) this.find(`.${name}`).textContent = "";
  }

  /** @param {Player} player @param {boolean} rewound */
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
      if (rounds.length) this.plot(name, rounds, player);
    }
    this.race(player);
    this.find(".toggle").textContent = player.playing ? "Pause" : "Play";
  }

  /** @param {SideName} name @param {Timed[]} rounds @param {Player} player */
  plot(name, rounds, player) {
    /** @type {[number, number][]} */
    const points = rounds.map(({ ms, tokens }) => [ms / 1000, tokens]);
    this.charts.clock.add(name === "plain" ? [points, []] : [[], points]);
    if (name === "plain") return;
    for (const move of this.moves) {
      if (!rounds.some(({ number }) => number === move.round)) continue;
      const text = move.num_assistant_tokens === null ? `threshold ${move.assistant_confidence_threshold}` : `lookahead ${move.num_assistant_tokens}`;
      this.charts.clock.mark((player.sides[name].rounds[move.round - 1]?.ms ?? 0) / 1000, text);
      this.charts.acceptance.mark(move.round - 0.5, text);
    }
    const judged = rounds.filter(({ number, proposed }) => number > 0 && proposed !== null);
    this.charts.acceptance.add([
      judged.map(({ number, accepted }) => [number, accepted]),
      judged.map(({ number, accepted, proposed }) => [number, (proposed ?? 0) - accepted]),
      judged.map(({ number, alpha }) => [number, alpha]),
    ]);
  }

  /** Show the race on the bars, as tokens of the limit. @param {Player} player */
  race(player) {
    const at = { plain: player.at("plain"), speculative: player.at("speculative") };
    for (const side of SIDES) {
      const { tokens, ms, finished } = at[side];
      const count = finished ? counted(tokens) : `${tokens} of ${player.limit}`;
      this.bar(side, ms ? tokens / player.limit : 0, ms ? `${count} · ${duration(ms)}` : "", finished); // the clock starts at the first token
    }
    this.charts.clock.element.hidden = !at.plain.ms && !at.speculative.ms;
    this.charts.acceptance.element.hidden = !at.speculative.ms;
    this.find(".headline").textContent = "";
    if (player.factor === null || (player.sequential && player.live)) return; // they do not run side by side yet, or at all
    const lead = this.lead ?? at.speculative.tokens - at.plain.tokens;
    if (at.plain.finished || at.speculative.finished) this.lead = lead;
    this.find(".headline").textContent = lead ? `Speculative is ${counted(Math.abs(lead))} ${lead > 0 ? "ahead" : "behind"}` : "";
    if (this.root.dataset.state === "playing") this.root.dataset.tone = lead > 0 ? "faster" : lead < 0 ? "slower" : "";
  }

  /** @param {SideName} side @param {number} share of the whole length @param {string} text @param {boolean} finished */
  bar(side, share, text, finished) {
    const track = this.find(`.track.${side}`);
    /** @type {HTMLElement} */ (track.querySelector("i")).style.width = `${100 * share}%`;
    /** @type {HTMLElement} */ (track.querySelector("output")).textContent = text;
    track.classList.toggle("finished", finished);
  }

  /** @param {Player} player */
  pace(player) {
    if (player.factor === null) return "";
    const remote = this.request?.pair.target.server !== null;
    if (player.live && !player.complete && remote) return "Live. Each side as its server's answer arrives.";
    if (player.live && !player.complete) return "Live. The sides take turns; each clock runs only while its side works.";
    if (player.factor === 1) return "Played in real time, each side on its own clock.";
    const long = player.complete ? player.total() : player.expected() ?? 0;
    return `Played ${player.factor}× slower than it ran: ${duration(long)} of computation.`;
  }

  ended() {
    for (const chart of Object.values(this.charts)) setTimeout(() => chart.flush());
    this.find(".toggle").textContent = "Replay";
    this.root.dataset.live = "false";
    this.root.dataset.state = this.finished ? "done" : "failed";
    if (!this.finished) return this.say(this.failure ?? "");
    const { record } = this.finished;
    const { summary } = record;
    const stopped = SIDES.some((side) => record[side].finish_reason === "cancelled");
    this.root.dataset.tone = summary.direction;
    this.root.dataset.strength = summary.strength;
    const reason = [stopped && "Stopped early.", summary.sentence, summary.certain].filter(Boolean).join(" ");
    const was = this.first === summary.headline ? "" : ` (was ${this.first.toLowerCase()})`;
    const range = [summary.range, summary.refined || (was && "with step costs")].filter(Boolean).join(", ") + was;
    const warning = summary.warnings.find((/** @type {any} */ { kind }) => kind !== "disturbed" || !summary.certain); // which says so, too
    const texts = { headline: summary.headline, reason, range, apart: summary.apart, warning: warning?.chip, "made-by": summary.made_by };
    for (const [name, text] of Object.entries(texts)) this.find(`.${name}`).textContent = text ?? "";
    this.find(".warning").dataset.meaning = warning?.reason ?? "";
    this.find(".agreement").textContent = summary.agreement && `${summary.identical ? "✓" : "≠"} ${summary.agreement}`;
    this.find(".agreement").dataset.identical = String(summary.identical);
    this.find(".grounds").replaceChildren(...summary.why.map(paragraph));
    this.find(".figures").replaceChildren(tiles(summary.figures), ...summary.notes.map(paragraph));
    this.finish(summary.seconds);
    if (this.marked === this.run) return;
    this.marked = this.run;
    for (const pane of Object.values(this.panes)) pane.mark(summary.first_divergence);
  }

  /** Show the times on the bars at the finish. @param {Record<string, number>} seconds */
  finish(seconds) {
    const longest = Math.max(...Object.values(seconds));
    for (const side of SIDES) {
      const time = seconds[side];
      if (time === undefined) continue;
      this.bar(side, longest ? time / longest : 0, duration(1000 * time), true);
    }
  }

  toggle() {
    if (!this.request) return;
    if (this.player.playing) this.player.pause();
    else this.player.play();
  }
}

/** The rounds of a side, the prefill first; a side that failed has none. @param {Run} run */
const roundsOf = ({ prefill, rounds }) => (prefill.committed.length ? [prefill, ...rounds] : []);

/** Whether the prompt is a chat message. @param {Comparison | null} request */
export const isChat = (request) => Boolean(request?.pair.target.chat_template && request.settings.apply_chat_template);

/** Sentences, and commands on lines of their own. @param {string} text */
const paragraph = (text) => make("p", text);

/** The figures as tiles. @param {{ name: string, plain: string, speculative: string, formula: string }[]} figures */
function tiles(figures) {
  const list = make("dl");
  for (const { name, plain, speculative, formula } of figures) {
    const [tile, value] = [make("div"), make("dd")];
    tile.classList.toggle("wide", speculative.length > WIDE);
    value.append(make("b", speculative), make("span", plain && `plain ${plain}`), make("small", [meaningOf(name), formula].filter(Boolean).map((text) => `${capitalised(text)}.`).join("\n")));
    tile.append(make("dt", name), value);
    list.append(tile);
  }
  return list;
}

const WIDE = 12; // characters that fit one column
/** @param {string} text */
const capitalised = (text) => text.charAt(0).toUpperCase() + text.slice(1);
