import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { load, show } from "./support.js";

const { Race } = await load("race.js");
const FIGURE = { data: [{}, {}], layout: {} };
const END = {
  headline: "1.50× faster", tone: "faster", reason: "Because.", warning: "disturbed", why: "<p>Why.</p>", ceiling: "a perfect draft would reach 2.0×",
  seconds: { plain: 3, speculative: 2 }, difference: "1.0 s saved of 3.0 s", agreement: "identical output", identical: true, divergence: null,
  stopped: false, made_by: "a pair", words: ["lookahead 4"], figures: "<dl></dl>", record: "{}",
};

class NoChart {
  constructor() { this.marks = []; }
  reset() {}
  add() {}
  flush() {}
  mark(x, text) { this.marks.push([x, text]); }
}

function race() {
  return new Race(show("race.html"), { chart: NoChart, figures: { clock: FIGURE, acceptance: FIGURE } });
}

let events = 0;
beforeEach(() => { events = 0; localStorage.clear(); });
const line = (kind, event) => JSON.stringify({ run: "a", at: events++, kind, ...event });
const start = () => line("start", { prompt: "Say", chat: false, history: "", max_new_tokens: 10, sequential: false, served: false });
const rounds = (...ends) => ends.map(([ms, tokens]) => ({
  ms, tokens, rate: 1, proposed: 2, accepted: 1, alpha: 0.5, thinking: false, html: `<span class="round"><span class="token plain" data-index="0">a</span></span>`,
}));
const slice = (side, ends, done, moves = []) => line("slice", { side, rounds: rounds(...ends), done, moves });
const widths = (view) => ["plain", "speculative"].map((side) => parseFloat(view.find(`.track.${side} i`).style.width));

test("bars show tokens of the limit while they race, and seconds at the finish", () => {
  const view = race();
  view.receive([start(), slice("plain", [[0, 1], [3000, 6]], true), slice("speculative", [[0, 1], [2000, 6]], true)].join("\n"));
  view.player.advance(2500);
  assert.deepEqual(widths(view), [10, 60]); // the speculative answer has ended before the limit, and its bar does not jump
  view.player.halt();
  view.receive(line("end", END));
  view.player.skip();
  const shown = widths(view);
  assert.deepEqual([shown[0], Number(shown[1].toFixed(2))], [100, 66.67]);
  assert.equal(view.find(".track.speculative output").textContent, "2.00 s · 1.0 s saved of 3.0 s");
});

test("the conclusion is one sentence, one warning, and a fold with the rest", () => {
  const view = race();
  view.receive([start(), slice("plain", [[0, 1], [3, 6]], true), slice("speculative", [[0, 1], [2, 6]], true), line("end", END)].join("\n"));
  view.player.skip();
  const text = (name) => view.find(`.${name}`).textContent;
  assert.deepEqual([text("headline"), text("reason"), text("warning"), text("ceiling")], [END.headline, END.reason, END.warning, END.ceiling]);
  assert.equal(view.find(".why .grounds").textContent, "Why.");
  assert.equal(view.find(".why").open, false);
});

test("a run that an earlier release kept still has its conclusion", () => {
  const view = race();
  const { warning, why, ceiling, seconds, difference, ...old } = END;
  assert.ok([warning, why, ceiling, seconds, difference].every(Boolean));
  view.receive([start(), slice("plain", [[0, 1], [3, 6]], true), slice("speculative", [[0, 1], [2, 6]], true), line("end", old)].join("\n"));
  view.player.skip();
  assert.equal(view.find(".reason").textContent, "Because.");
  assert.deepEqual(widths(view), [60, 60]);
});

test("what goes on before the first token stands in both panes", () => {
  const view = race();
  const phases = () => Object.values(view.panes).map(({ status }) => (status.hidden ? null : status.textContent));
  view.asked(true);
  assert.deepEqual(phases(), ["Getting ready …", "Getting ready …"]);
  view.receive([start(), line("phase", { text: "Warming up (1 of 2) …" })].join("\n"));
  assert.deepEqual(phases(), ["Warming up (1 of 2) …", "Warming up (1 of 2) …"]);
  view.receive(slice("plain", [[0, 1]], false));
  assert.deepEqual(phases(), [null, null]);
  view.player.halt();
});

test("a first token is shown as it arrives, before there is a pace to play at", () => {
  const view = race();
  const shown = () => ["plain", "speculative"].map((side) => view.find(`.pane.${side} .text`).querySelectorAll("[data-index]").length);
  view.receive([start(), line("phase", { text: "Warming up (2 of 2) …" })].join("\n"));
  assert.deepEqual([view.root.dataset.state, ...shown()], ["waiting", 0, 0]);
  view.receive(slice("plain", [[0, 1]], false));
  assert.deepEqual([view.root.dataset.state, ...shown()], ["playing", 1, 0]);
  assert.equal(view.find(".headline").textContent, ""); // no lead, before both have begun
  assert.equal(view.find(".reason").textContent, "");
  view.receive(slice("speculative", [[0, 1]], false));
  assert.deepEqual(shown(), [1, 1]);
  view.receive([slice("plain", [[3000, 6]], false), slice("speculative", [[2000, 6]], false)].join("\n"));
  assert.equal(view.player.position, 0); // from here on it is played
  view.player.halt();
});

test("a run that fails before its first token says why", () => {
  const view = race();
  view.receive([start(), line("phase", { text: "Loading the models …" }), line("error", { text: "The model is damaged." })].join("\n"));
  assert.equal(view.root.dataset.state, "failed");
  assert.match(view.find(".reason").textContent, /The model is damaged\./);
});

test("after a run that fails before its first token, the one before is shown again", () => {
  const view = race();
  view.receive([start(), slice("plain", [[0, 1], [3, 6]], true), slice("speculative", [[0, 1], [2, 6]], true), line("end", END)].join("\n"));
  view.player.skip();
  const shown = view.find(".outcome").textContent;
  events = 0;
  const other = (text) => text.replace('"run":"a"', '"run":"b"');
  view.receive([start(), line("phase", { text: "Warming up (1 of 2) …" }), line("error", { text: "The prompt is empty." })].map(other).join("\n"));
  assert.equal(view.root.dataset.state, "done");
  assert.equal(view.find(".outcome").textContent, shown);
  assert.equal(view.find(".headline").textContent, END.headline);
});

test("moves of settings are marked on both charts where they begin", () => {
  const view = race();
  const moves = [{ round: 1, text: "lookahead 7" }];
  view.receive([start(), slice("plain", [[0, 1], [3, 6]], true), slice("speculative", [[0, 1], [2, 6]], true, moves), line("end", END)].join("\n"));
  view.player.skip();
  assert.deepEqual([view.charts.clock.marks, view.charts.acceptance.marks], [[[0, "lookahead 7"]], [[0.5, "lookahead 7"]]]);
});

test("in a new chat the explanations return, and so does the invitation to run", () => {
  const view = race();
  const before = Object.values(view.panes).map(({ text }) => text.textContent);
  const invitation = view.find(".reason").textContent;
  view.receive([start(), slice("plain", [[0, 1], [3, 6]], true), slice("speculative", [[0, 1], [2, 6]], true), line("end", END)].join("\n"));
  view.player.skip();
  assert.equal(view.intro.element.hidden, true);
  view.anew();
  assert.deepEqual(Object.values(view.panes).map(({ text }) => text.textContent), before);
  assert.equal(view.find(".reason").textContent, invitation);
  assert.equal(view.intro.element.hidden, false);
});

test("the drawings are dismissed once, and found again", () => {
  const view = race();
  view.find(".dismiss").click();
  const again = race();
  assert.equal(again.intro.element.hidden, true);
  again.find(".how").click();
  assert.equal(again.intro.element.hidden, false);
});
