import assert from "node:assert/strict";
import { test } from "node:test";
import { load, round } from "./support.js";

const { Player } = await load("player.js");
/** Rounds that end at these milliseconds. */
const rounds = (...ends) => ends.map((ms, index) => round(index ? (ms - ends[index - 1]) / 1000 : 0.001, ["a"]));

function playing() {
  const calls = { drawn: 0, rewound: 0, ended: 0 };
  const player = new Player((_, rewound) => { calls.drawn += 1; calls.rewound += Number(rewound); }, () => { calls.ended += 1; });
  return { player, calls };
}

test("a finished run plays in about four seconds", () => {
  const { player } = playing();
  player.reset({ limit: 3 });
  player.add("plain", rounds(0, 50, 100), true);
  player.add("speculative", rounds(0, 80), true);
  player.received(true);
  assert.equal(player.factor, 40);
  assert.equal(player.total(), 100);
  player.stopTimer();
});

test("playback never overtakes the slower side's data", () => {
  const { player } = playing();
  player.reset({ limit: 10 });
  player.add("plain", rounds(0, 1000, 2000), false);
  player.add("speculative", rounds(0, 1500), false);
  assert.equal(player.horizon(), 1500);
  player.add("speculative", [], true);
  assert.equal(player.horizon(), 2000);
});

test("a side's rounds appear when their clock is reached, each once", () => {
  const { player } = playing();
  player.add("plain", rounds(0, 10, 20), true);
  player.position = 10;
  assert.deepEqual(player.take("plain").map(({ ms }) => ms), [0, 10]);
  assert.deepEqual(player.take("plain"), []);
  assert.deepEqual(player.stateOf("plain"), { ms: 10, tokens: 2, finished: false });
  player.position = 20;
  assert.equal(player.take("plain").length, 1);
  assert.equal(player.stateOf("plain").finished, true);
});

test("skip shows the end at once, and replay starts from the beginning", () => {
  const { player, calls } = playing();
  player.reset({ limit: 2 });
  for (const side of ["plain", "speculative"]) player.add(side, rounds(0, 10), true);
  player.received(true);
  player.skip();
  assert.deepEqual([player.ended, calls.ended], [true, 1]);
  player.play();
  assert.equal(calls.rewound, 1);
  player.pause();
  assert.equal(player.playing, false);
});

test("one after the other and live, the speculative clock follows the plain one", () => {
  const { player } = playing();
  player.reset({ limit: 100, sequential: true });
  player.add("plain", rounds(0, 5000), false);
  player.received(false);
  assert.equal(player.live, true);
  assert.equal(player.offset("speculative"), 5000);
  player.stopTimer();
});

test("a side plays live if it is alone or the other one failed after its first token", () => {
  for (const before of [[], [0]]) {
    const { player } = playing();
    player.reset({ limit: 100, sequential: true });
    player.add("plain", rounds(...before), before.length > 0);
    player.add("speculative", rounds(0, 5000), false);
    player.received(false);
    assert.equal(player.live, true);
    assert.equal(player.expected(), 250000);
    player.stopTimer();
  }
});

test("the final record adds missed rounds and replaces rounds that a server revised", () => {
  const { player, calls } = playing();
  const all = rounds(0, 10, 20);
  player.add("plain", all.slice(0, 2), false);
  player.position = 10;
  player.take("plain");
  player.finish("plain", all);
  assert.deepEqual([player.sides.plain.rounds.length, player.sides.plain.shown, calls.rewound], [3, 2, 0]);
  player.finish("plain", [{ ...all[0], seconds: 2 }, ...all.slice(1)]);
  assert.deepEqual([player.sides.plain.rounds.length, calls.rewound], [3, 1]);
});
