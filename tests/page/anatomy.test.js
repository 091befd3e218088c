import assert from "node:assert/strict";
import { test } from "node:test";
import { comparison, load, show } from "./support.js";

test("the anatomy of a recording has its rounds, and gives way to the next run", async () => {
  const { Anatomy } = await load("anatomy.js");
  const element = show("anatomy.html"), view = new Anatomy(element);
  view.receive({ run: "recording", record: comparison(), anatomy: null });
  assert.equal(element.querySelectorAll(".step").length, 1);
  assert.equal(element.querySelectorAll(".board .card").length, 0);
  view.receive({ run: "a", record: comparison({}, { made_by: "another pair." }), anatomy: [{ title: "Passes", paragraphs: ["Few."] }] });
  assert.match(element.querySelector(".about").textContent, /^another pair\. 1 rounds/);
  assert.equal(element.querySelectorAll(".board .card").length, 1);
});
