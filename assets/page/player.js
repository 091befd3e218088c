// Synchronised playback of two recorded sides, on the times of their own clocks.
//
// The position is in milliseconds of the sides' clocks and never exceeds the time that both have reached. A short run
// is slowed down by a factor. A run slow enough to follow is played live: each slice while the next is computed,
// stretched over the time that one is expected to take. So the text moves evenly, and the clocks stay the engine's.

import { SIDES, Timeline } from "./rounds.js";

/** @typedef {{ timeline: Timeline, rounds: Timed[], done: boolean, shown: number }} Side */

const WATCH_MS = 4000; // playing time of a replay
const CALM_MS = 9000; // of the first replay that a visitor sees, slow enough to read along
const DRAW_MS = 50; // between drawings
const IDLE_FACTOR = 10; // while an engine on this machine may compute: idle this many times as long as a drawing took
const LAST_MS = 600; // to play the remainder of a live run that is over
const FIRST_SLICE_MS = 450; // expected until the first slices arrive
const LATE = 1.15; // play a little slower than slices arrive, so that the text does not pause

export class Player {
  /** @param {(player: Player, rewound: boolean) => void} onDraw @param {() => void} onEnd */
  constructor(onDraw, onEnd) {
    this.onDraw = onDraw;
    this.onEnd = onEnd;
    /** @type {ReturnType<typeof setTimeout> | undefined} */ this.timer = undefined;
    /** @type {number | null} */ this.chosenFactor = null; // by the reader; null: about four seconds
    this.reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
    this.reducedMotion.addEventListener("change", ({ matches }) => matches && this.playing && this.skip());
    /** @type {Record<SideName, Side>} */ this.sides = { plain: newSide(), speculative: newSide() };
    this.sequential = this.calm = false;
    this.limit = this.position = this.receivedTo = this.receivedAt = this.rate = this.interval = 0;
    /** @type {number | null} */ this.factor = null;
    /** @type {number | null} */ this.fittedFactor = null;
    this.complete = this.playing = this.live = this.immediate = this.ended = false;
    this.reset({});
  }

  /** @param {{ limit?: number, sequential?: boolean, calm?: boolean }} run calm: slower, sparing an engine that may load */
  reset({ limit = 0, sequential = false, calm = false }) {
    this.stopTimer();
    this.sides = { plain: newSide(), speculative: newSide() };
    Object.assign(this, { limit, sequential, calm, position: 0, factor: null, fittedFactor: null });
    this.complete = this.playing = this.live = this.immediate = this.ended = false;
    Object.assign(this, { receivedTo: 0, receivedAt: performance.now(), interval: FIRST_SLICE_MS, rate: 0 });
  }

  /** @param {SideName} name @param {Round[]} rounds @param {boolean} done @param {Counts} counts */
  add(name, rounds, done, counts = null) {
    this.sides[name].timeline.push(rounds, counts);
    this.sides[name].done = done;
  }

  /** Replace rounds that a server has revised, and play again. @param {SideName} name @param {Round[]} rounds all of the side @param {Counts} counts */
  finish(name, rounds, counts = null) {
    const side = this.sides[name];
    const same = side.rounds.every(({ round }, index) => JSON.stringify(round) === JSON.stringify(rounds[index]));
    if (same) return this.add(name, rounds.slice(side.rounds.length), true, counts);
    this.sides[name] = newSide();
    this.add(name, rounds, true, counts);
    const { immediate } = this;
    if (side.shown) this.rewind();
    this.immediate = immediate; // nothing else would draw them
  }

  /** Note that an update has been added. @param {boolean} complete nothing follows */
  received(complete) {
    this.complete = complete;
    if (this.factor === null && (complete || this.expected() !== null)) this.begin();
    else if (this.factor === null && this.sides.plain.rounds.length + this.sides.speculative.rounds.length) {
      this.onDraw(this, false); // the first tokens, before the pace is known
    }
    const [now, horizon] = [performance.now(), this.horizon()];
    if (horizon > this.receivedTo) {
      if (this.receivedTo) this.interval = (this.interval + now - this.receivedAt) / 2;
      Object.assign(this, { receivedTo: horizon, receivedAt: now });
    }
    this.rate = (horizon - this.position) / (complete ? LAST_MS : LATE * this.interval);
    if (this.playing && this.immediate) this.advance();
  }

  /** Milliseconds that the longer side will take at its pace so far; null while that is unknown. */
  expected() {
    const all = Object.values(this.sides);
    const running = all.find((side) => side.rounds.at(-1)?.ms) ?? this.sides.plain; // which may have failed
    const sides = this.sequential ? [running] : all; // one after the other, or one alone
    const estimates = sides.map((side) => {
      const last = side.rounds.at(-1);
      if (!last?.ms) return null;
      return side.done ? last.ms : (last.ms * this.limit) / last.tokens;
    });
    return estimates.includes(null) ? null : Math.max(.../** @type {number[]} */ (estimates));
  }

  begin() {
    const needed = (this.calm ? CALM_MS : WATCH_MS) / (this.complete ? this.total() : this.expected() ?? WATCH_MS);
    this.fittedFactor = needed > 1.5 ? Number(needed.toPrecision(2)) : 1;
    this.factor = this.chosenFactor ?? this.fittedFactor;
    this.live = !this.complete && this.factor === 1;
    this.immediate ||= this.reducedMotion.matches;
    this.play();
  }

  play() {
    if (this.ended) this.rewind();
    this.playing = true;
    this.stopTimer();
    if (this.immediate) this.advance();
    else this.tick(performance.now());
  }

  pause() {
    this.playing = false;
    this.stopTimer();
    this.onDraw(this, false);
  }

  /** Show everything received so far at once, and later rounds as they arrive. */
  skip() {
    if (this.ended) return;
    this.immediate = true;
    if (this.factor !== null) this.play();
  }

  /** @param {number | null} factor */
  choose(factor) {
    this.chosenFactor = factor;
    if (this.factor === null) return;
    this.factor = factor ?? this.fittedFactor;
    this.live = this.live && this.factor === 1;
    if (this.ended || this.playing) this.play();
  }

  rewind() {
    Object.assign(this, { position: 0, ended: false, immediate: false, live: false });
    for (const side of Object.values(this.sides)) side.shown = 0;
    this.onDraw(this, true);
  }

  /** @param {number} before */
  tick(before) {
    const now = performance.now();
    const passed = now - before;
    this.advance(this.live ? passed * this.rate : passed / (this.factor ?? 1));
    if (!this.playing || this.immediate) return;
    const drawingMs = performance.now() - now;
    const idleMs = Math.max(DRAW_MS - drawingMs, this.complete && !this.calm ? 0 : IDLE_FACTOR * drawingMs);
    this.timer = setTimeout(() => this.tick(now), idleMs);
  }

  stopTimer() {
    clearTimeout(this.timer);
  }

  advance(ms = Infinity) {
    this.position = this.immediate ? this.horizon() : Math.min(this.horizon(), this.position + ms);
    this.onDraw(this, false);
    if (!this.complete || this.position < this.total()) return;
    this.stopTimer();
    Object.assign(this, { playing: false, ended: true });
    this.onEnd();
  }

  /** In a live sequential run, the speculative clock starts where the plain one ends. @param {SideName} name */
  offset(name) {
    return this.sequential && this.live && name === "speculative" ? this.end("plain") : 0;
  }

  /** @param {SideName} name */
  end(name) {
    return this.sides[name].rounds.at(-1)?.ms ?? 0;
  }

  total() {
    return Math.max(...SIDES.map((name) => this.offset(name) + this.end(name)));
  }

  /** The latest position that can be played: the end, or the time that both sides have reached. */
  horizon() {
    const running = SIDES.filter((name) => !this.sides[name].done);
    if (this.complete || !running.length || (this.sequential && this.live)) return this.total();
    return Math.min(...running.map((name) => this.end(name)));
  }

  /** Rounds of a side that became visible since the last call. @param {SideName} name */
  take(name) {
    const side = this.sides[name];
    const from = side.shown;
    const until = this.position - this.offset(name) + 1e-6;
    while (side.shown < side.rounds.length && side.rounds[side.shown].ms <= until) side.shown += 1;
    return side.rounds.slice(from, side.shown);
  }

  /** A side's state: its clock, its committed tokens, and whether it has finished. @param {SideName} name */
  stateOf(name) {
    const side = this.sides[name];
    const last = side.rounds[side.shown - 1];
    const finished = side.done && side.shown === side.rounds.length;
    const ms = finished || !last ? last?.ms ?? 0 : Math.max(this.position - this.offset(name), last.ms);
    return { ms, tokens: last?.tokens ?? 0, finished };
  }
}

/** @returns {Side} */
function newSide() {
  const timeline = new Timeline();
  return { timeline, rounds: timeline.rounds, done: false, shown: 0 };
}
