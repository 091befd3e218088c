import assert from "node:assert/strict";
import { test } from "node:test";
import { load, show } from "./support.js";

const { overlaid } = await load("past.js");
const { Race } = await load("race.js");

class NoChart {
  reset() {}
  add() {}
  flush() {}
  mark() {}
}

const round = (ms, tokens) => ({ ms, tokens, rate: 1, proposed: 2, accepted: 1, alpha: 0.5, thinking: false, html: "" });
const events = (prompt, words) => [
  { kind: "start", run: prompt, at: 0, prompt, chat: false, history: "", max_new_tokens: 10, sequential: false, served: false },
  { kind: "slice", run: prompt, at: 1, side: "plain", rounds: [round(0, 1), round(3, 2)], done: true },
  { kind: "slice", run: prompt, at: 2, side: "speculative", rounds: [round(0, 1), round(2, 2)], done: true },
  { kind: "end", run: prompt, at: 3, headline: "1.50× faster", made_by: "a pair.", words, figures: "", record: JSON.stringify({ speculative: { token_ids: [1, 2] } }) },
];
const names = (...runs) => Object.values(overlaid(runs)[0].names);

test("two runs laid over each other are named by what differs: settings, else prompts, else their order", () => {
  const settings = ["GenAI", "lookahead 2"];
  assert.deepEqual(names(events("Say", settings), events("Say", ["GenAI", "lookahead 4"])), ["lookahead 2", "lookahead 4"]);
  assert.deepEqual(names(events("Say", settings), events("Tell", settings)), ["“Say”", "“Tell”"]);
  assert.deepEqual(names(events("Say", settings), events("Say", settings)), ["GenAI, earlier", "GenAI, later"]);
  const long = "The same beginning of a long prompt, ";
  const [first, second] = names(events(`${long}one`, settings), events(`${long}two`, settings));
  assert.notEqual(first, second);
});

test("panes, bars and keys of two prompts with equal settings carry the prompts", () => {
  const view = new Race(show("race.html"), { chart: NoChart, figures: {} });
  view.receive(overlaid([events("Say", ["GenAI"]), events("Tell", ["GenAI"])]).map((event) => JSON.stringify(event)).join("\n"));
  view.player.skip();
  for (const place of [".pane h2", ".track > span", ".charts .key:is(.plain, .speculative)"]) {
    assert.deepEqual([...document.querySelectorAll(place)].map(({ textContent }) => textContent), ["“Say”", "“Tell”"], place);
  }
  assert.equal(view.find(".headline").textContent, "1.50×"); // of both
  assert.equal(view.find(".agreement").textContent, ""); // answers to different prompts
  assert.equal(view.find(".why").hidden, true);
});
