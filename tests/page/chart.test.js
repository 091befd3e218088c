import assert from "node:assert/strict";
import { test } from "node:test";
import { drawn, load } from "./support.js";

const { Chart, ticks } = await load("chart.js");
const FIGURE = {
  data: [{ type: "bar", name: "accepted", marker: { color: "green" } }, { name: "plain", mode: "lines", line: { color: "red" } }],
  layout: { barmode: "stack", xaxis: { title: { text: "round" } }, yaxis: { title: "proposals" } },
};

/** The texts of the last drawing. */
function texts() {
  const last = drawn.map(([name]) => name).lastIndexOf("scale"); // a drawing begins with it
  return drawn.slice(last).filter(([name]) => name === "fillText").map(([, text]) => text);
}

function chart(figure) {
  return new Chart(document.body.appendChild(document.createElement("div")), figure);
}

test("points, marks, another run, another figure", () => {
  const one = chart(FIGURE);
  one.reset();
  one.add([[[1, 3]], [[1, 1]]]);
  one.add([[[2, 4]], []]);
  one.mark(1.5, "lookahead 7");
  one.flush();
  assert.deepEqual(one.points, [[[1, 3], [2, 4]], [[1, 1]]]);
  assert.ok(["accepted", "plain", "round", "proposals", "lookahead 7"].every((text) => texts().includes(text)));
  one.reset();
  one.flush();
  assert.ok(!texts().includes("lookahead 7"));
  one.show({ ...FIGURE, data: [{ ...FIGURE.data[0], x: ["a", "<b>"], y: [1, 2], error_y: { array: [1, 1] } }] });
  one.flush();
  assert.ok(texts().includes("a"));
});

test("the pointer names the nearest values", () => {
  const one = chart(FIGURE);
  one.add([[[1, 3], [9, 4]], [[1, 1], [9, 2.5]]]);
  one.flush();
  one.hover(one.place(1, 0)[0], 50);
  assert.equal(one.tip.textContent, "round 1\naccepted: 3\nplain: 1");
});

test("ticks are round numbers", () => {
  assert.deepEqual(ticks(0, 10), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(ticks(0, 0.7).map((tick) => Number(tick.toFixed(3))), [0, 0.2, 0.4, 0.6]);
  assert.deepEqual(ticks(3, 5, 1), [3, 4, 5]);
});
