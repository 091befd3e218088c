import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { comparison, load, show, until } from "./support.js";

const { Stored, isText } = await load("storage.js");
const { Past, rowOf, runsIn } = await load("past.js");
const { pack } = await load("files.js");
const { textsIn } = await load("settings.js");
const TABLE = '<div id="own-runs"><table><tbody></tbody></table></div>';

beforeEach(() => { localStorage.clear(); sessionStorage.clear(); });

/** A finished run with this lookahead. */
function finished(run, lookahead, speedup) {
  const record = comparison({}, { speedup });
  record.settings.num_assistant_tokens = lookahead;
  return { run, record, anatomy: null };
}

async function kept(...runs) {
  const made = await Promise.all(runs.map(async (one, index) => ({
    run: one.run, when: index, prompt: "Say", headline: "h", made_by: "x", row: rowOf(one), packed: await pack(JSON.stringify(one)),
  })));
  localStorage.setItem("specdemo-runs", JSON.stringify(made.reverse()));
}

function past() {
  const element = show("race.html").querySelector(".past");
  document.body.insertAdjacentHTML("beforeend", TABLE);
  const opened = [];
  const race = { root: document.querySelector(".race"), request: null, open: ({ run }) => opened.push(run), player: { skip() {} } };
  return { element, opened, past: new Past(element, race), race };
}

test("what was written is read, and anything else is reset", () => {
  const one = new Stored("key", (value) => (isText(value) ? value : null), "nothing");
  assert.equal(one.read(), "nothing");
  one.write("text");
  assert.equal(one.read(), "text");
  for (const wrong of ["{", "[1, 2]", "7", "null"]) {
    localStorage.setItem("key", wrong);
    one.reset = false;
    assert.deepEqual([one.read(), one.reset, localStorage.getItem("key")], ["nothing", true, '"nothing"'], wrong);
  }
  const refusing = new Stored("key", () => null, "nothing", () => { throw new Error("denied"); });
  assert.deepEqual([refusing.read(), refusing.write("text")], ["nothing", false]); // a browser that keeps nothing is no error
});

test("of a list of runs and of settings, what is usable stays", async () => {
  await kept(finished("a", 4, 1.5));
  const [run] = JSON.parse(localStorage.getItem("specdemo-runs"));
  assert.equal(runsIn({}), null);
  assert.deepEqual(runsIn([1, run, { ...run, when: "yesterday" }, { ...run, row: null }, null]), [run]);
  assert.deepEqual(textsIn({ prompt: "Say", seed: 3 }), { prompt: "Say" });
});

for (const wrong of ['"x"', "[1,2,3]", "{"]) {
  test(`a result is kept, and the reset is said, where the browser held ${wrong}`, async () => {
    localStorage.setItem("specdemo-runs", wrong);
    const { element, race } = past();
    assert.match(element.querySelector(".none").textContent, /was reset/);
    race.root.dispatchEvent(new CustomEvent("finished", { detail: finished("b", 4, 1.5) }));
    await until(() => element.querySelectorAll("li").length === 1);
    assert.equal(JSON.parse(localStorage.getItem("specdemo-runs"))[0].run, "b");
  });
}

test("a run is opened; one that cannot be unpacked is forgotten, and that is said", async () => {
  await kept(finished("a", 4, 1.5));
  const { element, opened, past: runs } = past();
  await runs.open("a");
  assert.deepEqual(opened, ["a"]);
  localStorage.setItem("specdemo-runs", localStorage.getItem("specdemo-runs").replace(/"packed":"[^"]*"/, '"packed":"no base64"'));
  await runs.open("a");
  assert.equal(element.querySelectorAll("li").length, 0);
  assert.match(element.querySelector(".none").textContent, /was reset/);
});

test("this tab's run comes back, whatever another has run since", async () => {
  await kept(finished("mine", 4, 1.5), finished("theirs", 4, 1.5));
  sessionStorage.setItem("specdemo-run", '"mine"');
  const { opened, past: runs } = past();
  await runs.last();
  assert.deepEqual(opened, ["mine"]);
});

test("runs of one prompt with several lookaheads make a table, whose fastest stands out", async () => {
  await kept(finished("a", 8, 0.9));
  past();
  assert.equal(document.querySelectorAll("#own-runs tr").length, 0);
  await kept(finished("a", 8, 0.9), finished("b", 10, 0.8), finished("c", 3, 1.2), finished("d", 3, 1.6));
  past();
  const rows = [...document.querySelectorAll("#own-runs tr")].map((row) => [row.firstChild.textContent, row.lastChild.textContent, row.className]);
  assert.deepEqual(rows, [["3", "1.60×", "best"], ["8", "0.90×", ""], ["10", "0.80×", ""]]); // the last run of each
});
