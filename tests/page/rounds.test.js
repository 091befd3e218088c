import assert from "node:assert/strict";
import { test } from "node:test";
import { load, round, show } from "./support.js";

const { Markdown, Timeline, renderChips, renderRound, tipOf } = await load("rounds.js");
const { Pane, duration, formatted } = await load("pane.js");

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

test("thinking ends where its tag does", () => {
  assert.deepEqual(timed(...["<think>", " Hm", "</think>", " Yes"].map((text) => round(1, [text]))).map(({ thinking }) => thinking), [true, true, true, false]);
});

test("kinds of tokens are told apart, each with its explanation, and none is markup", () => {
  const [, one] = timed(round(1, [" a"]), round(0.5, [" the", " <b>dog</b>"], 1, [" cat", "?"]));
  const element = renderRound(one, { side: "speculative", source: "replayed" });
  assert.deepEqual([...element.children].map(({ className, textContent }) => [className.replace("token ", ""), textContent]), [
    ["accepted", " the"], ["rejected", " cat"], ["discarded", "?"], ["own", " <b>dog</b>"],
  ]);
  assert.equal(element.querySelector("b"), null);
  assert.deepEqual([...element.querySelectorAll("[data-index]")].map(({ dataset }) => dataset.index), ["1", "2"]);
  const [accepted, , unknown, own] = [...element.children].map(tipOf);
  assert.match(accepted, /^accepted proposal\ndraft's probability 0\.943 \(replayed\)\nround 1, 500\.00 ms: 3 proposed, 1 accepted, 2 committed$/);
  assert.match(unknown, /the engine does not report its token/);
  assert.match(own, /^correction token/);
  assert.match(tipOf(renderRound(timed(round(1, [" a"]))[0], { side: "plain" }).firstChild), /prefill/);
});

test("a record whose proposals contradict its counts is shown, too", () => {
  const [, one] = timed(round(1, [" a"]), { ...round(0.5, [" the"]), proposed: round(1, ["x", "y", "z"], 3).proposed });
  assert.equal(renderRound(one, { side: "speculative" }).textContent, " the");
  assert.deepEqual(renderChips(one.round).map(({ className }) => className), ["chip accepted", "chip accepted", "chip accepted"]);
});

const ANSWER = "# Sum\n\nUse **both** `a` and b:\n\n```python\n# add\nsum(a, b)\n```\nDone, # 1.\n| x | `y` |\n|---|---|\n";

/** The text of each style. @param {string[]} tokens */
function styled(...tokens) {
  const markdown = new Markdown();
  const found = {};
  for (const node of tokens.flatMap((token) => markdown.elements(token))) {
    const style = node.className?.replace("md-", "") ?? "text";
    found[style] = (found[style] ?? "") + node.textContent;
  }
  return found;
}

test("headings, bold text, code and rows are told apart, wherever tokens end", () => {
  const found = styled(ANSWER);
  assert.deepEqual([found.heading, found.strong, found.code, found.block], [" Sum", "both", "ay", "# add\nsum(a, b)\n"]);
  assert.match(found.text, /Done, # 1\./);
  assert.ok(found.rule.includes("---"));
  for (const size of [1, 2, 5]) {
    const pieces = ANSWER.match(new RegExp(`\`\`\`|\\*\\*|[^]{1,${size}}`, "g"));
    assert.equal(pieces.join(""), ANSWER);
    if (size === 1) assert.deepEqual(styled(...pieces).block, found.block);
  }
});

test("bold text and code may go on in the next line, but not in the next paragraph", () => {
  assert.equal(styled("**two\nlines** and").strong, "twolines");
  for (const end of ["\n\nNext", "\n- Next", "\n# Next", "\n```\nNext", "\n| Next"]) assert.equal(styled(`2 **3${end}`).strong, "3");
});

function pane() {
  const body = show("race.html");
  return new Pane(body.querySelector(".pane.speculative"), body.querySelector(".tip"), "speculative");
}

test("numbers in the unit that suits them", () => {
  assert.deepEqual([0.5, 12, 1234, 61_000, 125_000].map(duration), ["0.5 ms", "12 ms", "1.23 s", "61 s", "2 min 5 s"]);
  assert.deepEqual([formatted("alpha", 0.456), formatted("rate", 12.34), formatted("rate", null)], ["46 %", "12.3", "–"]);
});

test("a text is its prompt and its rounds, with figures of the last", () => {
  const one = pane();
  one.reset("Say", false);
  one.append(timed(round(1, [" I"]), round(0.5, [" the", " dog"], 1, [" cat"])), 500);
  assert.equal(one.text.querySelector(".prompt").textContent, "Say");
  assert.equal(one.copied(document.querySelector(".pane.speculative .answer-copy")), "I the dog");
  assert.deepEqual([...one.facts].map((fact) => fact.textContent), ["4.0", "500 ms", "50 %"]);
  one.mark(1);
  assert.match(tipOf(one.text.querySelector(".diverges")), /the outputs diverge here/);
});

test("thinking is folded; earlier turns and code blocks are formatted, and each block is copied alone", () => {
  const one = pane();
  one.reset("Say", true, [{ prompt: "Before", answer: "```\ncode\n```" }]);
  one.append(timed(round(1, ["<think>"]), round(1, [" Hm", "</think>"], 1), round(1, [" **Yes**\n```\nsum()\n```"])), 5);
  assert.equal(one.text.querySelector("summary").textContent, "Thinking, 3 tokens");
  assert.deepEqual([...one.text.querySelectorAll(".said")].map(({ textContent }) => textContent), ["Before", "Say"]);
  assert.equal(one.text.querySelector(".md-strong").textContent, "Yes");
  assert.deepEqual([...one.text.querySelectorAll(".copy")].map((button) => one.copied(button)), ["code", "sum()"]);
});
