// The race view: reads the events that a run sends, plays them, and shows the conclusion and the figures at the end.
// A finished run is one record, whether it has just ended, was stored, was opened from a file, or is a replay.

import { connectShareMenu } from "./files.js";
import { explanations, meaningOf } from "./glossary.js";
import { Pane, counted, duration } from "./pane.js";
import { Player } from "./player.js";
import { Chart } from "./plot.js";
import { SIDES, make } from "./rounds.js";

/** @typedef {import("./rounds.js").SideName} SideName */
/** @typedef {{ prefill: import("./rounds.js").Round, rounds: import("./rounds.js").Round[], finish_reason: string }} Run */
/** A comparison as `exports/schema.py` writes it; before its end, without sides and summary. @typedef {any} Comparison */
/** @typedef {{ run: string, record: Comparison, anatomy: import("./board.js").Part[] | null }} Finished */

export class Race {
  /** @param {HTMLElement} element @param {(event: string, data: object) => void} trigger fires an event of the widget */
  constructor(element, trigger = () => {}) {
    /** @param {string} selector */
    const find = (selector) => /** @type {HTMLElement} */ (element.querySelector(selector));
    this.find = find;
    this.trigger = trigger;
    this.root = find(".race");
    this.charts = ["tokens", "timing", "acceptance"].map((name) => new Chart(find(`.chart.${name}`), name));
    this.panes = { plain: new Pane(find(".pane.plain"), "plain"), speculative: new Pane(find(".pane.speculative"), "speculative") };
    this.player = new Player((player, rewound) => this.draw(player, rewound), () => this.ended());
    find(".toggle").addEventListener("click", () => (this.player.playing ? this.player.pause() : this.player.play())); // hidden before the first run
    find(".skip").addEventListener("click", () => this.player.skip());
    const speed = /** @type {HTMLSelectElement} */ (find(".speed"));
    speed.addEventListener("change", () => this.player.choose(Number(speed.value) || null));
    const discarded = /** @type {HTMLInputElement} */ (find(".discarded-shown"));
    discarded.addEventListener("change", () => this.root.classList.toggle("with-discarded", discarded.checked));
    element.querySelector(".rounds")?.addEventListener("click", () => trigger("select", {}));
    element.querySelector(".again button")?.addEventListener("click", () => trigger("stop", {}));
    if (element.querySelector(".share")) connectShareMenu(find(".share"), find("#share-menu"), () => this.finished?.record, trigger);
    this.run = "";
    /** @type {Set<string>} */ this.startedRuns = new Set(); // including this one
    this.lastEvent = -1; // its number in the run
    /** @type {Comparison | null} */ this.request = null; // prompt, pair and settings
    /** @type {Finished | null} */ this.finished = null;
    /** @type {string | null} */ this.failure = null;
    /** @type {import("./plot.js").SettingsUpdate[]} */ this.updates = [];
    /** @type {number | null} */ this.lead = null; // in tokens, at the moment the first side finished
    /** @type {string | null} */ this.markedRun = null; // whose divergence is marked
    this.recorded = false; // whether it is a recording, which plays before the visitor's first run
    this.welcome = SIDES.map((side) => this.panes[side].text.firstElementChild ?? "");
  }

  /** Read lines of events, of which each update repeats some. @param {string | null | undefined} text @param {boolean} restoring a run that comes whole was opened from a file, and its settings become the page's */
  receive(text, restoring = true) {
    let changed = false;
    const { finished } = this;
    for (const json of (text ?? "").split("\n").filter(Boolean)) {
      const event = JSON.parse(json);
      // skip events already read, those of earlier runs, and those of a run whose start was missed
      if (event.run === this.run ? event.at <= this.lastEvent : this.startedRuns.has(event.run) || !event.record) continue;
      if (event.run !== this.run) this.begin(event.run, event.record);
      this.lastEvent = event.at;
      if (event.kind === "repeating") this.root.classList.add("repeating"); // from now on, the server can stop it
      this.handle(event);
      if (restoring && event.kind === "end" && !event.at) this.restoreSettings();
      changed = true;
    }
    if (!changed) return;
    if (this.finished && finished !== this.finished && !this.recorded) this.root.dispatchEvent(new CustomEvent("finished", { detail: this.finished }));
    if (!this.player.complete) this.player.received(Boolean(this.finished ?? this.failure));
    else if (this.player.ended) this.ended(); // with the result of its repeats
  }

  /** Show a finished run from its beginning. @param {Finished} finished @param {boolean} restoring also its settings */
  open(finished, restoring = false) {
    this.run = "";
    this.startedRuns.delete(finished.run);
    this.receive(JSON.stringify({ ...finished, at: 0, kind: "end" }), restoring);
  }

  /** Set the prompt and the settings of the run on screen. */
  restoreSettings() {
    if (document.querySelector("#run:disabled")) return void setTimeout(() => this.restoreSettings(), 100); // the page still restores its own
    const { pair, prompt, settings, history } = /** @type {Comparison} */ (this.request);
    const texts = Object.fromEntries(Object.entries(settings).map(([name, value]) => [name, String(value)]));
    this.trigger("apply", { run: { pair: pair.name, prompt, settings: texts, continued: history.length > 0 } });
  }

  /** @param {any} event */
  handle(event) {
    if (event.kind === "phase") return this.phase(event.text);
    if (event.kind === "start") return;
    this.phase("");
    if (event.kind === "slice") {
      this.panes[/** @type {SideName} */ (event.side)].source = event.trace_source;
      this.player.add(event.side, event.rounds, event.finish_reason !== null);
      this.updates.push(...event.settings_updates);
    }
    if (event.kind === "end") {
      const { run, record, anatomy } = event;
      this.finished = { run, record, anatomy }; // it is sent again with the figures of repeats
      this.updates = record.settings_updates;
      this.panes.speculative.source = record.trace_source;
      for (const side of SIDES) this.player.finish(side, roundsOf(record[side]), record[side].draft_counts);
    }
    if (event.kind === "error") this.failure = event.text;
  }

  /** Show a phase before the first token. @param {string} text */
  phase(text) {
    for (const { status } of Object.values(this.panes)) Object.assign(status, { textContent: text, hidden: !text });
  }

  /** Replace a recording with the page's introduction. */
  endRecording() {
    if (!this.recorded) return;
    this.player.reset({});
    Object.assign(this, { recorded: false, run: "", finished: null });
    this.clear();
    Object.assign(this.root.dataset, { state: "idle", tone: "", recorded: "" });
    SIDES.forEach((side, index) => this.panes[side].text.replaceChildren(this.welcome[index]));
    this.request = null;
  }

  /** A run was requested or is over. Until it begins, the page hides the last results. @param {boolean} busy */
  setRequested(busy) {
    if (busy) this.endRecording();
    if (busy && this.finished) this.player.skip(); // to its end
    if (busy) this.find(".search-result").replaceChildren();
    this.root.classList.toggle("requested", busy);
    this.phase(busy ? "Getting ready …" : "");
  }

  /** @param {string} run @param {Comparison} request */
  begin(run, request) {
    this.finished = this.failure = null;
    this.startedRuns.add(run);
    Object.assign(this, { run, request, updates: [], lastEvent: -1 });
    const { settings, pair, recorded } = request;
    const remote = pair.target.server !== null;
    this.recorded = Boolean(recorded);
    if (recorded) this.find(".recording").textContent = `A recording (${request.environment.device}, ${new Date(recorded).toLocaleDateString("en-GB", { dateStyle: "medium" })}); Run races on this machine.`;
    this.root.dataset.recorded = recorded ?? "";
    this.player.reset({ limit: settings.max_new_tokens, sequential: settings.sequential || remote, calm: this.recorded });
    this.root.classList.remove("requested");
    this.root.classList.toggle("chat", isChat(request));
    Object.assign(this.root.dataset, { state: "waiting", tone: "" });
    this.find(".figures").replaceChildren();
    if (this.find(".conclusion").getBoundingClientRect().top < 0) scrollTo({ top: 0 });
    this.clear();
  }

  clear() {
    this.lead = this.markedRun = null;
    const { prompt, history } = /** @type {Comparison} */ (this.request);
    const chat = isChat(this.request);
    for (const side of SIDES) this.panes[side].reset(prompt, chat, history);
    this.setReason("");
    this.drawCharts(this.player);
    this.drawBars(this.player);
  }

  /** @param {string} text */
  setReason(text) {
    if (this.find(".reason").textContent === text) return; // a live region: repeat nothing
    this.find(".reason").textContent = text;
    for (const name of ["agreement", "range", "grounds", "made-by"]) this.find(`.${name}`).textContent = "";
  }

  /** @param {Player} player @param {boolean} rewound */
  draw(player, rewound) {
    if (rewound) this.clear();
    if (this.root.dataset.state !== "playing") Object.assign(this.root.dataset, { state: "playing", tone: "" });
    this.root.dataset.live = String(player.factor === null || (player.live && !player.complete));
    this.setReason(player.immediate ? "" : this.pace(player));
    for (const name of SIDES) this.panes[name].append(player.take(name), player.stateOf(name).ms);
    this.drawCharts(player);
    this.drawBars(player);
    this.find(".toggle").textContent = player.playing ? "Pause" : "Play";
  }

  /** @param {Player} player */
  drawCharts({ sides: { plain, speculative }, complete }) {
    const shown = { plain: plain.rounds.slice(0, plain.shown), speculative: speculative.rounds.slice(0, speculative.shown) };
    for (const chart of this.charts) chart.grow(shown, this.updates, this.run, !complete);
  }

  /** Show tokens, as a share of the limit, on the bars. @param {Player} player */
  drawBars(player) {
    const at = { plain: player.stateOf("plain"), speculative: player.stateOf("speculative") };
    for (const side of SIDES) {
      const { tokens, ms, finished } = at[side];
      const count = finished ? counted(tokens) : `${tokens} of ${player.limit}`;
      this.setBar(side, ms ? tokens / player.limit : 0, ms ? `${count} · ${duration(ms)}` : "", finished); // the clock starts at the first token
    }
    this.find(".headline").textContent = "";
    if (player.factor === null || (player.sequential && player.live)) return; // the sides do not run side by side, or not yet
    const lead = this.lead ?? at.speculative.tokens - at.plain.tokens;
    if (at.plain.finished || at.speculative.finished) this.lead = lead;
    this.find(".headline").textContent = lead ? `Speculative is ${counted(Math.abs(lead))} ${lead > 0 ? "ahead" : "behind"}` : "";
    if (this.root.dataset.state === "playing") this.root.dataset.tone = lead > 0 ? "faster" : lead < 0 ? "slower" : "";
  }

  /** @param {SideName} side @param {number} share of the whole length @param {string} text @param {boolean} finished */
  setBar(side, share, text, finished) {
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
    this.drawCharts(this.player);
    this.find(".toggle").textContent = "Replay";
    this.root.dataset.live = "false";
    this.root.dataset.state = this.finished ? "done" : "failed";
    if (!this.finished) return this.setReason(""); // the page says why beside Run
    const { record, record: { summary } } = this.finished;
    const stopped = SIDES.some((side) => record[side].finish_reason === "cancelled") && SIDES.map((side) => `${this.player.stateOf(side).tokens} ${side}`).join(" and ");
    this.root.dataset.tone = summary.direction;
    const reason = [stopped && `Stopped after ${stopped} tokens.`, summary.expectation, summary.state !== "clear" && summary.expectation ? "" : summary.sentence].filter(Boolean).join(" ");
    const warning = summary.warnings.find((/** @type {any} */ { kind }) => kind !== "disturbed"); // the expectation says it
    const texts = { headline: summary.headline, reason, range: [summary.pooled, warning?.chip].filter(Boolean).join(" · "), "made-by": summary.made_by };
    for (const [name, text] of Object.entries(texts)) this.find(`.${name}`).textContent = text ?? "";
    this.find(".agreement").textContent = summary.agreement && `${summary.identical ? "✓" : "≠"} ${summary.agreement}`;
    this.find(".agreement").dataset.identical = record.settings.do_sample ? "" : String(summary.identical); // draws may differ
    this.find(".grounds").replaceChildren(...paragraphs([summary.certain, summary.expectation, summary.sentence, ...summary.why].filter((text) => text && text !== reason)));
    this.find(".figures").replaceChildren(tiles(summary.figures), ...paragraphs(summary.notes));
    const longest = Math.max(...Object.values(summary.seconds));
    for (const side of SIDES) { // a side that failed has no time
      const time = summary.seconds[side];
      if (time !== undefined) this.setBar(side, longest ? time / longest : 0, duration(1000 * time) + (summary.runs > 1 ? " mean" : ""), true);
    }
    if (this.markedRun === this.run) return;
    this.markedRun = this.run;
    for (const pane of Object.values(this.panes)) pane.mark(record.settings.do_sample ? null : summary.first_divergence);
  }
}

/** The rounds of a side, the prefill first; a side that failed has none. @param {Run} run */
const roundsOf = ({ prefill, rounds }) => (prefill.committed.length ? [prefill, ...rounds] : []);

/** @param {string[]} texts */
const paragraphs = (texts) => texts.map((text) => make("p", text));

/** Whether the prompt is a chat message. @param {Comparison | null} request */
export const isChat = (request) => Boolean(request?.pair.target.chat_template && request.settings.apply_chat_template);

/** The figures as tiles; their names show explanations. @param {{ name: string, plain: string, speculative: string, formula: string }[]} figures */
function tiles(figures) {
  const list = make("dl");
  for (const { name, plain, speculative, formula } of figures) {
    const [tile, title, value, word] = [make("div"), make("dt"), make("dd"), Object.assign(make("span", name, "word"), { tabIndex: 0 })];
    word.dataset.meaning = [explanations(name) || `${name.charAt(0).toUpperCase()}${name.slice(1)}:`, `Formula: ${formula}.`].join("\n");
    tile.classList.toggle("wide", speculative.length > WIDE);
    value.append(make("b", speculative), make("span", plain && `plain ${plain}`));
    title.append(word);
    tile.append(title, value, make("dd", meaningOf(name), "meaning"));
    list.append(tile);
  }
  return list;
}

const WIDE = 12; // characters that fit one column
