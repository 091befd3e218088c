import assert from "node:assert/strict";
import { test } from "node:test";
import { load, plotted, round, until } from "./support.js";

const { Chart, columns } = await load("plot.js");
const { Timeline } = await load("rounds.js");

function timeline(...rounds) {
  const made = new Timeline();
  made.push(rounds);
  return made.rounds;
}

test("a round's columns leave out what is unknown", () => {
  const parts = { ...round(0.01, [" b", " c"], 1, ["?"]), draft_seconds: 0.002, verify_seconds: 0.007 };
  const [prefill, first, second] = timeline(round(1, [" a"]), parts, { ...round(0.01, [" d"]), proposed: null }).map(columns);
  assert.deepEqual([prefill.round, prefill.seconds, prefill.accepted], [null, 0, undefined]);
  assert.deepEqual([first.accepted, first.unaccepted, first.alpha, first.draft, first.verify, first.whole], [1, 1, 0.5, 2, 7, undefined]);
  assert.ok(Math.abs(first.rest - 1) < 1e-9);
  assert.deepEqual([second.tokens, second.alpha, second.whole, second.rest], [4, undefined, 10, undefined]);
});

test("a chart has the page's colours and a table of its numbers", async () => {
  document.body.style.setProperty("--sd-ink", "#eee");
  const chart = new Chart(document.body.appendChild(document.createElement("div")));
  chart.show({ data: [{ name: "<b>", x: [1, 2], y: [0.12345, null], line: { color: "#1b1f24" } }], layout: { xaxis: { title: { text: "round" } }, yaxis: { title: { text: "tokens" } } } }, "a");
  await until(() => plotted.length);
  const [{ data, layout }] = plotted;
  assert.deepEqual([data[0].line.color, layout.template.font, layout.uirevision], ["#eee", "#eee", "a"]);
  assert.equal(chart.plot.ariaLabel, "tokens by round: <b>");
  assert.deepEqual([...chart.table().rows].map((row) => [...row.cells].map((cell) => cell.textContent)), [["round", "<b>"], ["1", "0.1235"], ["2", ""]]);
});
