import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { comparison, load, round, show, until } from "./support.js";

const { Race } = await load("race.js");
const race = () => new Race(show("race.html"));
let events = 0;
beforeEach(() => { events = 0; localStorage.clear(); });
const line = (kind, event, run = "a") => JSON.stringify({ run, at: events++, kind, ...event });
const start = (run) => line("start", { record: comparison() }, run);
const slice = (side, rounds, done, settings_updates = []) => line("slice", { side, rounds, finish_reason: done ? "length" : null, trace_source: "measured", settings_updates });
const end = (record = comparison(), run = "a") => line("end", { record, anatomy: null }, run);
const widths = (view) => ["plain", "speculative"].map((side) => Number(parseFloat(view.find(`.track.${side} i`).style.width).toFixed(2)));
const text = (view, name) => view.find(`.${name}`).textContent;
const tokens = (view) => ["plain", "speculative"].map((side) => view.find(`.pane.${side} .text`).querySelectorAll("[data-index]").length);

test("bars show tokens of the limit while they race, and seconds at the finish", () => {
  const view = race();
  const { plain, speculative } = comparison();
  view.receive([start(), slice("plain", [plain.prefill, ...plain.rounds], true), slice("speculative", [speculative.prefill, ...speculative.rounds], true)].join("\n"));
  view.player.advance(2500);
  assert.deepEqual(widths(view), [30, 40]);
  assert.equal(text(view, "headline"), "Speculative is 1 token ahead");
  view.player.stopTimer();
  view.receive(end());
  view.player.skip();
  assert.deepEqual(widths(view), [100, 66.67]);
  assert.equal(view.find(".track.speculative output").textContent, "2.00 s");
});

test("a finished run shows its record: text, conclusion, figures and explanations", () => {
  const view = race();
  const seen = [];
  view.root.addEventListener("finished", ({ detail }) => seen.push(detail.run));
  view.receive(end());
  view.player.skip();
  assert.deepEqual(tokens(view), [4, 4]);
  assert.deepEqual(["headline", "range", "reason", "agreement", "made-by"].map((name) => text(view, name)), [
    "1.5× faster", "in this race · disturbed", "Expect 1.4× to 1.6× faster. Because.", "✓ identical output", "a pair, lookahead 4.",
  ]);
  assert.equal(text(view, "grounds"), "Expect 1.4× to 1.6× faster.Because.Why.\npython -m specdemo");
  assert.match(text(view, "figures"), /acceptance rate α0\.50share of .* acceptedRecorded\./);
  assert.match(view.find(".figures .word").dataset.meaning, /^acceptance rate α: share .*\nFormula: accepted \/ proposed\.$/);
  assert.deepEqual(seen, ["a"]);
});

test("figures that an earlier version saved have the glossary's meaning, or only their formula", () => {
  const view = race();
  const old = (name) => ({ name, plain: "", speculative: "0.50", formula: "a / b" });
  view.receive(end(comparison({}, { figures: [old("acceptance rate α"), old("verify cost v(5)")] })));
  view.player.skip();
  const [alpha, cost] = [...view.root.querySelectorAll(".figures .word")].map(({ dataset }) => dataset.meaning);
  assert.match(alpha, /^acceptance rate α: share .*\.\nFormula: a \/ b\.$/);
  assert.equal(cost, "verify cost v(5)\nFormula: a / b.");
  assert.doesNotMatch(text(view, "figures"), /undefined/);
});

test("after repeats, headline and bars are of all runs together", () => {
  const view = race();
  view.receive(end());
  view.player.skip();
  view.receive(end(comparison({}, { runs: 2, headline: "1.6× faster", pooled: "in the race and 1 repeat", seconds: { plain: 3.2, speculative: 2 } })));
  assert.deepEqual(["headline", "range"].map((name) => text(view, name)), ["1.6× faster", "in the race and 1 repeat · disturbed"]);
  assert.equal(view.find(".track.plain output").textContent, "3.20 s mean");
});

test("a stopped run says so, and Why? has the counts", () => {
  const view = race();
  const record = comparison({}, { certain: "Certain: 1 pass instead of 3." });
  record.plain.finish_reason = "cancelled";
  view.receive(end(record));
  view.player.skip();
  assert.equal(text(view, "reason"), "Stopped after 4 plain and 4 speculative tokens. Expect 1.4× to 1.6× faster. Because.");
});

test("phases before the first token show in both panes, without the last run", () => {
  const view = race();
  const phases = () => Object.values(view.panes).map(({ status }) => (status.hidden ? null : status.textContent));
  view.setRequested(true);
  assert.ok(view.root.classList.contains("requested"));
  assert.deepEqual(phases(), ["Getting ready …", "Getting ready …"]);
  view.receive([start(), line("phase", { text: "Warming up (1 of 2) …" })].join("\n"));
  assert.ok(!view.root.classList.contains("requested"));
  assert.deepEqual(phases(), ["Warming up (1 of 2) …", "Warming up (1 of 2) …"]);
  view.receive(slice("plain", [round(0.1, ["a"])], false));
  assert.deepEqual(phases(), [null, null]);
  view.player.stopTimer();
});

test("a first token is shown as it arrives, before there is a pace to play at; an update may repeat events", () => {
  const view = race();
  const first = start();
  view.receive(first);
  assert.deepEqual([view.root.dataset.state, ...tokens(view)], ["waiting", 0, 0]);
  const second = slice("plain", [round(0.1, ["a"])], false);
  view.receive(`${first}\n${second}`);
  view.receive(`${first}\n${second}`);
  assert.deepEqual([view.root.dataset.state, ...tokens(view)], ["playing", 1, 0]);
  assert.equal(text(view, "headline"), ""); // no lead, before both have begun
  assert.equal(view.find(".track.plain output").textContent, "");
  view.player.stopTimer();
});

test("a run that fails leaves the reason to the message beside Run", () => {
  const view = race();
  view.receive([start("b"), line("error", { text: "The model is damaged." }, "b")].join("\n"));
  assert.equal(view.root.dataset.state, "idle");
  assert.equal(text(view, "reason"), "");
});

test("moved settings are marked on the charts", async () => {
  const view = race();
  view.receive(end(comparison({ settings_updates: [{ round: 1, label: "lookahead 7" }] })));
  view.player.skip();
  const notes = () => view.charts.map(({ plot }) => plot.layout?.annotations?.[0]);
  await until(() => notes().every(Boolean));
  assert.deepEqual(notes().map((note) => [note.x, note.text]), [[0, "lookahead 7"], [0.5, "lookahead 7"], [0.5, "lookahead 7"]]);
});

test("repeats of an earlier run do not disturb a new one", () => {
  const view = race();
  const { plain } = comparison();
  view.receive(end());
  view.player.skip();
  view.receive(start("b"));
  view.receive(end());
  assert.deepEqual([view.run, view.finished, view.root.dataset.state], ["b", null, "waiting"]);
  view.receive(line("slice", { side: "plain", rounds: [plain.prefill], finish_reason: null, trace_source: "measured", settings_updates: [] }, "b"));
  view.receive(line("slice", { side: "plain", rounds: plain.rounds, finish_reason: "length", trace_source: "measured", settings_updates: [] }, "c")); // its start was missed
  view.receive(end(comparison(), "b"));
  view.player.skip();
  assert.equal(view.root.dataset.state, "done");
  view.open({ run: "a", record: comparison(), anatomy: null });
  assert.equal(view.run, "a");
});
