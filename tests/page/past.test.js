import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { comparison, load, show, until } from "./support.js";

const { store, restore } = await load("storage.js");
const { Past, storedRuns, rowOf } = await load("past.js");
const { pack } = await load("files.js");
const TABLE = '<div id="own-runs"><table><tbody></tbody></table></div>';

beforeEach(() => { localStorage.clear(); sessionStorage.clear(); });

/** A finished run with this lookahead. */
function finished(run, lookahead, speedup, error = 0.05) {
  const record = comparison({}, { speedup, speedup_interval: [speedup - error, speedup + error] });
  record.summary.strategy = `lookahead ${lookahead}`;
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

test("stored values are restored, and invalid ones are ignored", () => {
  assert.equal(restore("key"), null);
  assert.equal(store("key", ["text"]), true);
  assert.deepEqual([restore("key"), restore("key", "sessionStorage")], [["text"], null]);
  localStorage.setItem("key", "{");
  assert.equal(restore("key"), null);
  assert.deepEqual([restore("key", "noStorage"), store("key", 1, "noStorage")], [null, false]); // a browser that keeps nothing is no error
});

test("usable stored runs stay, and a new one is added", async () => {
  await kept(finished("a", 4, 1.5));
  const [run] = storedRuns();
  localStorage.setItem("specdemo-runs", JSON.stringify([1, run, { ...run, when: "yesterday" }, { ...run, row: null }, null]));
  const { element, race } = past();
  assert.deepEqual(storedRuns(), [run]);
  localStorage.setItem("specdemo-runs", "{");
  race.root.dispatchEvent(new CustomEvent("finished", { detail: finished("b", 4, 1.5) }));
  await until(() => element.querySelector("li")?.dataset.run === "b");
  assert.deepEqual(storedRuns().map(({ run: name }) => name), ["b"]);
});

test("a stored run is opened, and a damaged one is forgotten", async () => {
  await kept(finished("a", 4, 1.5));
  const { element, opened, past: runs } = past();
  await runs.open("a");
  assert.deepEqual(opened, ["a"]);
  localStorage.setItem("specdemo-runs", localStorage.getItem("specdemo-runs").replace(/"packed":"[^"]*"/, '"packed":"no base64"'));
  await runs.open("a");
  assert.equal(element.querySelectorAll("li").length, 0);
});

test("a stored run of an earlier schema is dropped", async () => {
  const old = finished("a", 4, 1.5);
  await kept(old, finished("b", 4, 1.5));
  const { settings_updates: moves, ...record } = old.record;
  const stored = JSON.parse(localStorage.getItem("specdemo-runs"));
  stored.find(({ run }) => run === "a").packed = await pack(JSON.stringify({ ...old, record: { ...record, moves } }));
  localStorage.setItem("specdemo-runs", JSON.stringify(stored));
  const { element, opened, past: runs } = past();
  await runs.open("a");
  await runs.open("b");
  assert.deepEqual(opened, ["b"]);
  assert.equal(element.querySelectorAll("li").length, 1);
});

test("this tab's run is restored, whatever another tab has run since", async () => {
  await kept(finished("mine", 4, 1.5), finished("theirs", 4, 1.5));
  sessionStorage.setItem("specdemo-run", '"mine"');
  const { opened, past: runs } = past();
  await runs.last();
  assert.deepEqual(opened, ["mine"]);
});

test("runs of a prompt with several lookaheads make a table that marks one whose interval lies above all others", async () => {
  await kept(finished("a", 8, 0.9));
  past();
  assert.equal(document.querySelectorAll("#own-runs tr").length, 0);
  const rows = () => [...document.querySelectorAll("#own-runs tr")].map((row) => [row.firstChild.textContent, row.lastChild.textContent, row.className]);
  const [slow, older, fast] = [finished("a", 8, 0.9), finished("c", 3, 1.2), finished("d", 3, 1.6)];
  await kept(slow, finished("b", 10, 1.2, 0.01), older, fast);
  past();
  const [one, other] = [["lookahead 3", "1.60× (1.55–1.65)", "best"], ["lookahead 8", "0.90× (0.85–0.95)", ""]];
  assert.deepEqual(rows(), [one, other, ["lookahead 10", "1.20× (1.19–1.21)", ""]]); // the last run of each
  await kept(slow, finished("b", 10, 1.2, 0.9), fast);
  past();
  assert.deepEqual(rows().map(([, , name]) => name), ["", "", ""]);
  localStorage.setItem("specdemo-runs", localStorage.getItem("specdemo-runs").replaceAll(/,"low":[\d.]+,"high":[\d.]+/g, "")); // as once kept
  past();
  assert.deepEqual(rows()[0], ["lookahead 3", "1.60×", ""]);
});
