import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { PAGE, load, round, show } from "./support.js";

const { Timeline, renderChips, renderRound } = await load("rounds.js");
const { Pane, duration, formatted } = await load("pane.js");
const { explained, marked, tipOf } = await load("glossary.js");

function timed(...rounds) {
  const timeline = new Timeline();
  timeline.push(rounds);
  return timeline.rounds;
}

test("each round has the clock and the figures at its end", () => {
  const [prefill, first, second] = timed(round(1, [" a"]), round(0.5, [" b", " c"], 1, ["x"]), round(0.5, [" d"], 0, ["y", "z"]));
  assert.deepEqual([prefill.ms, prefill.tokens, prefill.rate, prefill.alpha], [0, 1, null, null]);
  assert.deepEqual([first.ms, first.tokens, first.rate, first.alpha, first.accepted, first.proposed], [500, 3, 4, 0.5, 1, 2]);
  assert.deepEqual([second.ms, second.tokens, second.rate, second.alpha], [1000, 4, 3, 0.25]);
  const [, unknown] = timed(round(1, [" a"]), { ...round(1, [" b", " c"]), proposed: null });
  assert.deepEqual([unknown.proposed, unknown.accepted, unknown.alpha], [null, 1, null]);
});

test("thinking and code end at their marks, even if tokens split these", () => {
  assert.deepEqual(timed(...["<think>", " Hm", "</think>", " Yes"].map((text) => round(1, [text]))).map(({ thinking }) => thinking), [true, true, true, false]);
  assert.deepEqual(timed(round(1, ["Sum:"]), round(1, ["\n``", "`\nx"]), round(1, ["\n", "```", "\nDone"])).flatMap(({ code }) => code), [false, false, true, true, false, false]);
});

test("elements whose text is a term are marked, and explain it", () => {
  const [exact, among, none] = ["τ", "TTFT mean", "variant"].map((text) => marked(Object.assign(document.createElement("th"), { textContent: text })));
  assert.deepEqual([exact, among, none].map(({ dataset, tabIndex }) => [dataset.term, tabIndex]), [["τ", 0], ["TTFT", 0], [undefined, -1]]);
  assert.equal(explained("bonus token", false, "no term"), "bonus token: what the target adds after a round whose proposals were all accepted.\nno term");
  document.body.append(among);
  const word = among;
  word.dispatchEvent(new Event("focusin", { bubbles: true }));
  assert.match(document.querySelector("#meaning").textContent, /^time to first token \(TTFT\): how long/);
  assert.equal(word.getAttribute("aria-describedby"), "meaning");
  document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
  assert.equal(document.querySelector("#meaning"), null);
  assert.equal(word.hasAttribute("aria-describedby"), false);
});

test("the page's markup and Gradio's labels name terms of the glossary", () => {
  const texts = ["race.html", "parts.html", "gradio.js"].map((name) => readFileSync(new URL(name, PAGE), "utf8")).join("\n");
  const markup = [...texts.matchAll(/data-term="([^{"]+)"/g)].flatMap(([, names]) => names.split(", "));
  const labels = [.../const TERMS = \{[^}]+\}/.exec(texts)[0].matchAll(/: "(.+)",/g)].map(([, name]) => name);
  assert.ok(markup.length > 10 && labels.length === 5);
  assert.deepEqual([...markup, ...labels].filter((name) => explained(name) === name), []);
});

test("each kind of token has its class and explanation, and none is markup", () => {
  const [, one] = timed(round(1, [" a"]), round(0.5, [" the", " <b>dog</b>"], 1, [" cat", "?"]));
  const element = renderRound(one, { side: "speculative", source: "replayed" });
  assert.deepEqual([...element.children].map(({ className, textContent }) => [className.replace("token ", ""), textContent]), [
    ["accepted", " the"], ["rejected", " cat"], ["discarded", "?"], ["target", " <b>dog</b>"],
  ]);
  assert.equal(element.querySelector("b"), null);
  assert.deepEqual([...element.querySelectorAll("[data-index]")].map(({ dataset }) => dataset.index), ["1", "2"]);
  const [accepted, , unknown, own] = [...element.children].map(tipOf);
  const [, blank] = timed(round(1, [" a"]), round(0.5, [" the"], 0, ["\n "]));
  assert.match(tipOf(renderRound(blank, { side: "speculative" }).firstChild), /\nmarks: ↵ a line break/);
  assert.match(accepted, /^accepted proposal\ndraft's probability 0\.943 \(replayed\)\nreplayed: this engine .*\nround 1: 1 of 3 accepted · 500\.00 ms$/);
  assert.match(unknown, /the engine does not report its token/);
  assert.match(own, /^correction token: /);
  one.round.proposed[1].target_likeliest = [{ id: 1, text: " dog", probability: 0.6 }, { id: 2, text: "\n", probability: 0.25 }];
  assert.match(tipOf(element.children[3]), /\ntarget's likeliest: {2}dog 0\.60 · ↵ 0\.25\n/);
  assert.match(tipOf(renderRound(timed(round(1, [" a"]))[0], { side: "plain" }).firstChild), /prefill/);
});

test("copies differ from drafts by their frame, in text and chips", () => {
  const step = round(0.5, [" the", " dog"], 1, [" cat"]);
  step.proposed.forEach((proposal) => Object.assign(proposal, { copied: true, draft_probability: 1, target_probability: 0.25 }));
  const [, one] = timed(round(1, [" a"]), step);
  const element = renderRound(one, { side: "speculative" });
  assert.deepEqual([...element.children].map(({ className }) => className), ["token accepted copied", "token rejected copied", "token target"]);
  assert.match(tipOf(element.firstChild), /^accepted proposal\ncopied: a proposal found .*\nround/);
  const [first] = renderChips(step);
  assert.deepEqual([first.className, first.lastChild.textContent], ["chip accepted copied", "copy → 0.25"]);
  assert.match(first.dataset.meaning, /copied: /);
});

test("a record whose proposals contradict its counts is shown, too", () => {
  const [, one] = timed(round(1, [" a"]), { ...round(0.5, [" the"]), proposed: round(1, ["x", "y", "z"], 3).proposed });
  assert.equal(renderRound(one, { side: "speculative" }).textContent, " the");
  assert.deepEqual(renderChips(one.round).map(({ className }) => className), ["chip accepted"]);
  const nameless = { ...one.round, proposed: [{ id: null, text: "", outcome: "accepted" }], committed: [{ id: null, text: "Hello" }, { id: null, text: " you" }] };
  assert.deepEqual(renderChips(nameless).map((chip) => chip.querySelector(".token").textContent), ["Hello", " you"]);
});

function pane() {
  const body = show("race.html");
  return new Pane(body.querySelector(".pane.speculative"), "speculative");
}

test("numbers have a suitable unit", () => {
  assert.deepEqual([0.5, 12, 1234, 61_000, 125_000].map(duration), ["0.5 ms", "12 ms", "1.23 s", "61 s", "2 min 5 s"]);
  assert.deepEqual([formatted("alpha", 0.456), formatted("rate", 12.34), formatted("rate", null)], ["46 %", "12.3", "–"]);
});

test("a text is its prompt and its rounds, with figures of the last", () => {
  const one = pane();
  one.reset("Say", false);
  one.append(timed(round(1, [" I"]), round(0.5, [" the", " dog"], 1, [" cat"])), 500);
  assert.equal(one.text.querySelector(".prompt").textContent, "Say");
  assert.equal(one.answer(), "I the dog");
  assert.deepEqual([...one.facts].map((fact) => fact.textContent), ["4.0", "500 ms", "50 %"]);
  one.mark(1);
  assert.match(tipOf(one.text.querySelector(".diverges")), /the outputs diverge here/);
});

test("thinking is folded, earlier turns come first, and text is unchanged", () => {
  const one = pane();
  one.reset("Say", true, [{ prompt: "Before", answer: "**Yes**" }]);
  one.append(timed(round(1, ["<think>"]), round(1, [" Hm", "</think>"], 1), round(1, [" **Yes**\n"])), 5);
  assert.equal(one.text.querySelector("summary").textContent, "Thinking, 3 tokens");
  assert.deepEqual([...one.text.querySelectorAll(".said, .answer")].map(({ textContent }) => textContent), ["Before", "**Yes**", "Say"]);
  assert.equal(one.text.querySelector(":scope > .round").textContent, " **Yes**\n");
});
