// One contract for both kinds of charts.

import assert from "node:assert/strict";
import { test } from "node:test";
import { asked, drawn, load, until } from "./support.js";

const { Chart } = await load("chart.js");
const { Sketch, ticks } = await load("sketch.js");
const FIGURE = {
  data: [{ type: "bar", name: "accepted", marker: { color: "green" } }, { name: "plain", mode: "lines", line: { color: "red" } }],
  layout: { barmode: "stack", xaxis: { title: { text: "round" } }, yaxis: { title: "proposals" }, font: {} },
};

/** The texts that stand on the chart: by Plotly as annotations, on a canvas as drawn. */
const texts = {
  Chart: () => asked.filter(([name]) => name === "react").at(-1)?.[3].annotations?.map(({ text }) => text) ?? [],
  Sketch: () => {
    const last = drawn.map(([name]) => name).lastIndexOf("scale"); // a drawing begins with it
    return drawn.slice(last).filter(([name]) => name === "fillText").map(([, text]) => text);
  },
};

for (const Kind of [Chart, Sketch]) {
  test(`${Kind.name}: points, marks, another run, another figure`, async () => {
    const element = document.body.appendChild(document.createElement("div"));
    const chart = new Kind(element, FIGURE);
    chart.reset("first");
    chart.add([[[1, 3]], [[1, 1]]]);
    chart.add([[[2, 4]], []]);
    chart.flush();
    assert.deepEqual(chart.points, [{ x: [1, 2], y: [3, 4] }, { x: [1], y: [1] }]);
    assert.equal(chart.pending, null);
    chart.mark(1.5, "lookahead 7");
    await until(() => texts[Kind.name]().includes("lookahead 7"));
    chart.resize();
    chart.repaint();
    chart.reset("second");
    await until(() => !texts[Kind.name]().includes("lookahead 7"));
    assert.deepEqual(chart.points, [{ x: [], y: [] }, { x: [], y: [] }]);
    chart.show({ ...FIGURE, data: [{ ...FIGURE.data[0], x: ["a", "b"], y: [1, 2] }] });
    assert.deepEqual(chart.points, [{ x: ["a", "b"], y: [1, 2] }]);
    chart.flush();
  });
}

test("both have the same public methods", () => {
  const names = (kind) => ["reset", "add", "mark", "show", "flush", "resize", "repaint"].filter((name) => typeof kind.prototype[name] !== "function");
  assert.deepEqual([names(Chart), names(Sketch)], [[], []]);
});

test("Plotly never offers to upload a chart", () => {
  const drawings = asked.filter(([name]) => name === "newPlot" || name === "react");
  assert.ok(drawings.length > 1);
  for (const [, , , , config] of drawings) assert.deepEqual([config.showSendToCloud, config.plotlyServerURL], [false, ""]);
});

test("ticks are round numbers", () => {
  assert.deepEqual(ticks(10), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(ticks(0.7).map((tick) => Number(tick.toFixed(3))), [0, 0.2, 0.4, 0.6]);
});
