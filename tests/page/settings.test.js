import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./support.js";

const { remember, recallDrafter } = await load("settings.js");

test("a drafter gets its settings back, even if nothing else changed before", () => {
  const keep = (...values) => remember(["drafter", "max_assistant_tokens"], ["model", 3], ...values);
  const recall = (...values) => recallDrafter({ drafter: null, max_assistant_tokens: 20 }, ...values);
  keep("model", 3);
  const suffix = recall("suffix", 3);
  keep("suffix", 3);
  keep(...suffix);
  assert.deepEqual([suffix, recall("model", 20)], [["suffix", 20], ["model", 3]]);
});
