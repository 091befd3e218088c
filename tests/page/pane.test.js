import assert from "node:assert/strict";
import { test } from "node:test";
import { load, show } from "./support.js";

const { Pane, duration, formatted } = await load("pane.js");
const { SlowMotion, stepOf } = await load("slow_motion.js");
const ROUND = `<span class="round" data-tip="round 1"><span class="token accepted" data-tip="accepted proposal
draft's probability 0.943 (replayed)" data-index="1"> the</span><span class="token rejected" data-tip="rejected proposal"> cat</span><span
class="token discarded" data-tip="">?</span><span class="token own" data-tip="" data-index="2"> dog</span></span>`;
const round = (html, thinking = false) => ({ html, thinking, ms: 5, tokens: 2, rate: 12.345, alpha: 0.5, proposed: 3, accepted: 1 });

function pane() {
  const body = show("race.html");
  return new Pane(body.querySelector(".pane.speculative"), body.querySelector(".tip"));
}

test("numbers in the unit that suits them", () => {
  assert.deepEqual([0.5, 12, 1234, 61_000, 125_000].map(duration), ["0.5 ms", "12 ms", "1.23 s", "61 s", "2 min 5 s"]);
  assert.deepEqual([formatted("alpha", 0.456), formatted("rate", 12.34), formatted("rate", null)], ["46 %", "12.3", "–"]);
});

test("a text is its prompt and its rounds, with figures of the last", () => {
  const one = pane();
  one.reset("Say", false);
  one.append([round(ROUND)], 5);
  assert.equal(one.text.querySelector(".prompt").textContent, "Say");
  assert.equal(one.copied(document.querySelector(".pane.speculative .answer-copy")), "the dog");
  assert.deepEqual([...one.facts].map((fact) => fact.textContent), ["12.3", "5.0 ms", "50 %"]);
});

test("thinking is folded, and a token's details are told", () => {
  const one = pane();
  one.reset("Say", true);
  const next = ROUND.replace('"1"', '"3"').replaceAll('"2"', '"4"');
  one.append([round(ROUND, true), round(next, true), round(ROUND)], 5);
  assert.equal(one.text.querySelector("summary").textContent, "Thinking, 4 tokens");
  one.mark(1);
  assert.ok(one.text.querySelector(".diverges").dataset.tip.endsWith("the outputs diverge here"));
});

test("in a new chat the side explains itself again", () => {
  const one = pane();
  const words = one.text.textContent;
  one.reset("Say", true);
  one.explainItself();
  assert.equal(one.text.textContent, words);
});

test("what is going on stands in the pane", () => {
  const one = pane();
  one.phase("Warming up (1 of 2)");
  assert.deepEqual([one.status.textContent, one.status.hidden], ["Warming up (1 of 2)", false]);
  one.phase("");
  assert.equal(one.status.hidden, true);
});

test("a round in slow motion: guesses, outcomes, what is added", () => {
  const step = stepOf(ROUND);
  assert.deepEqual(step.guesses.map(({ text, kind, odds }) => [text, kind, odds]), [
    [" the", "accepted", "94 % sure"], [" cat", "rejected", ""], ["?", "discarded", ""],
  ]);
  assert.deepEqual([step.own, step.committed], [[" dog"], " the dog"]);
  const slow = new SlowMotion(show("race.html").querySelector(".slow-motion"), () => {});
  slow.open([round(ROUND), round(ROUND)], "Say");
  assert.equal(slow.find(".saying").textContent, "The draft guesses 3 tokens, one after the other.");
  slow.forward();
  assert.match(slow.find(".saying").textContent, /keeps the first and adds a correction token: 2 tokens for one pass\. This engine does not report/);
  assert.ok(!slow.element.textContent.includes("→ –"));
  slow.forward();
  assert.equal(slow.element.hidden, true);
});
