import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { load, show, until } from "./support.js";

const { Stored, isText } = await load("storage.js");
const { Past, runsIn } = await load("past.js");
const { textsIn } = await load("settings.js");
const RUN = { run: "a", when: 1, prompt: "Say", headline: "1.2× faster", made_by: "x", words: ["lookahead 4"], events: "" };

beforeEach(() => { localStorage.clear(); sessionStorage.clear(); });

test("what was written is read, and anything else is reset", () => {
  const kept = new Stored("key", (value) => (isText(value) ? value : null), "nothing");
  assert.equal(kept.read(), "nothing");
  assert.equal(kept.reset, false);
  kept.write("text");
  assert.equal(kept.read(), "text");
  for (const wrong of ["{", "[1, 2]", "7", "null"]) {
    localStorage.setItem("key", wrong);
    kept.reset = false;
    assert.equal(kept.read(), "nothing", wrong);
    assert.equal(kept.reset, true, wrong);
    assert.equal(localStorage.getItem("key"), '"nothing"', wrong);
  }
});

test("a browser that keeps nothing is no error", () => {
  const refusing = () => { throw new Error("denied"); };
  const kept = new Stored("key", () => null, "nothing", refusing);
  assert.equal(kept.read(), "nothing");
  assert.equal(kept.write("text"), false);
});

test("of a list of runs, what is a run stays", () => {
  assert.equal(runsIn("x"), null);
  assert.equal(runsIn({}), null);
  assert.deepEqual(runsIn([1, RUN, { ...RUN, when: "yesterday" }, null]), [RUN]);
});

test("of settings, texts stay", () => {
  assert.deepEqual(textsIn({ prompt: "Say", seed: 3 }), { prompt: "Say" });
  assert.equal(textsIn([1]), null);
});

function past() {
  const element = show("race.html").querySelector(".past");
  const root = document.querySelector(".race");
  return { element, root, past: new Past(element, { root, begun: false, receive() {}, player: { skip() {} } }) };
}

for (const wrong of ['"x"', "[1,2,3]", "{", "{}"]) {
  test(`a result is kept, and the reset is said, where the browser held ${wrong}`, async () => {
    localStorage.setItem("specdemo-runs", wrong);
    const { element, root } = past();
    assert.equal(element.hidden, false);
    assert.match(element.querySelector(".none").textContent, /was reset/);
    const detail = { lines: ['{"run": "b", "prompt": "Say"}'], result: { headline: "1.2× faster", made_by: "x", words: [] } };
    root.dispatchEvent(new CustomEvent("finished", { detail }));
    await until(() => element.querySelectorAll("li").length === 1);
    assert.equal(JSON.parse(localStorage.getItem("specdemo-runs"))[0].run, "b");
  });
}

test("a run whose events cannot be unpacked is forgotten, and that is said", async () => {
  localStorage.setItem("specdemo-runs", JSON.stringify([{ ...RUN, events: "no base64" }]));
  const { element, past: runs } = past();
  await runs.open("a");
  assert.equal(element.querySelectorAll("li").length, 0);
  assert.match(element.querySelector(".none").textContent, /was reset/);
});

test("this tab's run comes back, whatever another has run since", async () => {
  const { past: runs } = past();
  const { pack } = await load("files.js");
  const events = await pack('{"at": 0}');
  localStorage.setItem("specdemo-runs", JSON.stringify([{ ...RUN, run: "theirs", when: 2, events }, { ...RUN, run: "mine", events }]));
  sessionStorage.setItem("specdemo-run", '"mine"');
  const seen = [];
  runs.lines = async (run) => { seen.push(run); return []; };
  await runs.last();
  assert.deepEqual(seen, ["mine"]);
});
