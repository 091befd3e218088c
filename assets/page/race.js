// The race view: reads the events that a run sends, plays them, and shows the conclusion and the figures at the end.
// A finished run is one record, whether it has just ended, was stored, was opened from a file, or is a replay.

import { connectShareMenu } from "./files.js";
import { explained } from "./glossary.js";
import { Pane, counted, duration } from "./pane.js";
import { Player } from "./player.js";
import { Chart } from "./plot.js";
import { SIDES, make, onPress, part } from "./rounds.js";

export class Race {
  /** @param {HTMLElement} element @param {Trigger} trigger */
  constructor(element, trigger = () => {}) {
    const find = this.find = (/** @type {string} */ selector) => part(element, selector);
    this.trigger = trigger;
    this.root = find(".race");
    this.charts = ["tokens", "timing", "acceptance"].map((name) => new Chart(find(`.chart.${name}`), name));
    const [plain, speculative] = SIDES.map((side) => new Pane(find(`.pane.${side}`), side));
    this.panes = { plain, speculative };
    this.player = new Player((player, rewound) => this.draw(player, rewound), () => this.ended());
    onPress(element, ".toggle", () => (this.player.playing ? this.player.pause() : this.player.play()));
    onPress(element, ".skip", () => this.player.skip());
    const speed = /** @type {HTMLSelectElement} */ (find(".speed"));
    speed.addEventListener("change", () => this.player.choose(Number(speed.value) || null));
    onPress(element, ".rounds", () => trigger("select", {}));
    onPress(element, ".again button", () => trigger("stop", {}));
    if (find(".share")) connectShareMenu(find(".share"), find("#share-menu"), () => this.finished?.record, trigger);
    this.run = "";
    /** @type {Set<string>} */ this.startedRuns = new Set(); // including this one
    this.lastEvent = -1; // its number in the run
    /** @type {Comparison | null} */ this.request = null; // prompt, pair and settings
    /** @type {Finished | null} */ this.finished = null;
    /** @type {string | null} */ this.failure = null;
    /** @type {SettingsUpdate[]} */ this.updates = [];
    /** @type {number | null} */ this.lead = null; // in tokens, at the moment the first side finished
    /** @type {string | null} */ this.markedRun = null; // whose divergence is marked
    this.recorded = false; // whether it is a recording, which plays before the visitor's first run
    this.welcome = SIDES.map((side) => this.panes[side].text.firstElementChild ?? "");
  }

  /**
   * Read lines of events, of which each update repeats some.
   * @param {string | null | undefined} text
   * @param {boolean} restoring a run that comes whole was opened from a file, and its settings become the page's
   */
  receive(text, restoring = true) {
    let changed = false;
    const { finished } = this;
    for (const json of (text ?? "").split("\n").filter(Boolean)) {
      const event = JSON.parse(json);
      // skip events already read, those of earlier runs, and those of a run whose start was missed
      const another = event.run !== this.run;
      if (another ? this.startedRuns.has(event.run) || !event.record : event.at <= this.lastEvent) continue;
      if (another) this.begin(event.run, event.record);
      this.lastEvent = event.at;
      if (event.kind === "repeating") this.root.classList.add("repeating"); // from now on, the server can stop it
      this.handle(event);
      if (restoring && event.kind === "end" && !event.at) this.restoreSettings();
      changed = true;
    }
    if (!changed) return;
    if (this.finished && finished !== this.finished && !this.recorded) {
      this.root.dispatchEvent(new CustomEvent("finished", { detail: this.finished }));
    }
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
    // while the page still restores its own
    if (document.querySelector("#run:disabled")) return void setTimeout(() => this.restoreSettings(), 100);
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
    const day = recorded && new Date(recorded).toLocaleDateString("en-GB", { dateStyle: "medium" });
    const origin = `A recording (${request.environment?.device}, ${day}); Run races on this machine.`;
    this.find(".recording").textContent = recorded ? origin : "";
    this.root.dataset.recorded = recorded ?? "";
    const sequential = settings.sequential || remote;
    this.player.reset({ limit: settings.max_new_tokens, sequential, calm: this.recorded });
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
    const [mine, theirs] = [speculative, plain].map(({ rounds, shown }) => rounds.slice(0, shown));
    for (const chart of this.charts) chart.grow({ speculative: mine, plain: theirs }, this.updates, this.run, !complete);
  }

  /** Show tokens, as a share of the limit, on the bars. @param {Player} player */
  drawBars(player) {
    const [plain, speculative] = SIDES.map((side) => {
      const state = player.stateOf(side), { tokens, ms, finished } = state;
      const text = `${finished ? counted(tokens) : `${tokens} of ${player.limit}`} · ${duration(ms)}`;
      this.setBar(side, ms ? tokens / player.limit : 0, ms ? text : "", finished); // the clock starts at the first token
      return state;
    });
    this.find(".headline").textContent = "";
    if (player.factor === null || (player.sequential && player.live)) return; // not side by side, or not yet
    const lead = this.lead ?? speculative.tokens - plain.tokens;
    if (plain.finished || speculative.finished) this.lead = lead;
    const ahead = `Speculative is ${counted(Math.abs(lead))} ${lead > 0 ? "ahead" : "behind"}`;
    this.find(".headline").textContent = lead ? ahead : "";
    if (this.root.dataset.state === "playing") this.root.dataset.tone = lead > 0 ? "faster" : lead < 0 ? "slower" : "";
  }

  /** @param {SideName} side @param {number} share of the whole length @param {string} text @param {boolean} finished */
  setBar(side, share, text, finished) {
    const track = this.find(`.track.${side}`);
    part(track, "i").style.width = `${100 * share}%`;
    part(track, "output").textContent = text;
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
    this.root.dataset.state = this.finished ? "done" : "idle";
    if (!this.finished) return this.setReason(""); // the page says why beside Run
    const { record } = this.finished;
    const { agreement, certain, direction, expectation, identical, sentence, state, why, ...summary } = record.summary;
    this.root.dataset.tone = direction;
    const tokens = SIDES.map((side) => `${this.player.stateOf(side).tokens} ${side}`).join(" and ");
    const stopped = SIDES.some((side) => record[side].finish_reason === "cancelled");
    const reasons = [stopped && `Stopped after ${tokens} tokens.`, expectation, (state === "clear" || !expectation) && sentence];
    const reason = reasons.filter(Boolean).join(" ");
    const warning = summary.warnings.find((/** @type {any} */ { kind }) => kind !== "disturbed"); // the expectation says it
    const range = [summary.pooled, warning?.chip].filter(Boolean).join(" · ");
    const texts = { headline: summary.headline, reason, range, "made-by": summary.made_by };
    for (const [name, text] of Object.entries(texts)) this.find(`.${name}`).textContent = text ?? "";
    this.find(".agreement").textContent = agreement && `${identical ? "✓" : "≠"} ${agreement}`;
    this.find(".agreement").dataset.identical = record.settings.do_sample ? "" : String(identical); // draws may differ
    const grounds = [certain, expectation, sentence, ...why].filter((text) => text && text !== reason);
    this.find(".grounds").replaceChildren(...paragraphs(grounds));
    this.find(".figures").replaceChildren(tiles(summary.figures), ...paragraphs(summary.notes));
    const longest = Math.max(...Object.values(summary.seconds));
    for (const side of SIDES) { // a side that failed has no time
      const time = summary.seconds[side];
      const text = duration(1000 * time) + (summary.runs > 1 ? " mean" : "");
      if (time !== undefined) this.setBar(side, longest ? time / longest : 0, text, true);
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

/** The figures as tiles; their names show explanations. @param {Metric[]} figures */
function tiles(figures) {
  const list = make("dl");
  for (const { name, plain, speculative, meaning, formula } of figures) {
    const [tile, title, value, word] = [make("div"), make("dt"), make("dd"), make("span", name, "word")];
    word.tabIndex = 0;
    const sentence = meaning ? `${name}: ${meaning}.` : explained(name); // earlier versions saved no meaning
    word.dataset.meaning = `${sentence}\nFormula: ${formula}.`;
    tile.classList.toggle("wide", speculative.length > WIDE);
    value.append(make("b", speculative), make("span", plain && `plain ${plain}`));
    title.append(word);
    tile.append(title, value, make("dd", meaning, "meaning"));
    list.append(tile);
  }
  return list;
}

const WIDE = 12; // characters that fit one column
