// Playback of two recorded sides in step with each other, slowed by a factor.
//
// Position is in milliseconds of the sides' own clocks and never passes what both sides have reached. A run slow
// enough to follow is shown live: the same playback, always at the end of a growing recording. It is drawn when
// something new arrives, which is when the engine pauses, so that drawing takes nothing from it.

const WATCH_MS = 4000; // what a run should take to watch
const DRAW_MS = { computing: 300, done: 33 }; // drawing takes time from an engine on the same machine

class Player {
  constructor(onDraw, onEnd) {
    this.onDraw = onDraw;
    this.onEnd = onEnd;
    this.frame = null;
    this.chosen = null; // speed, by the reader; null: about four seconds
    this.reset({});
  }

  reset({ limit = 0, sequential = false }) {
    this.stopFrames();
    this.sides = { plain: this.newSide(), speculative: this.newSide() };
    Object.assign(this, { limit, sequential, position: 0, factor: null, slowed: null });
    Object.assign(this, { complete: false, playing: false, live: false, eager: false, ended: false });
  }

  newSide() {
    return { rounds: [], done: false, shown: 0 };
  }

  add(name, rounds, done) {
    this.sides[name].rounds.push(...rounds);
    this.sides[name].done = done;
    if (this.factor === null && this.expected() !== null) this.begin();
    else if (this.live && this.playing) this.advance();
  }

  finish() {
    this.complete = true;
    if (this.factor === null) this.begin();
    else if (this.live && this.playing) this.advance();
  }

  // Milliseconds the longer side will take, judged by its pace so far; null before there is one.
  expected() {
    const sides = this.sequential ? [this.sides.plain] : Object.values(this.sides);
    const guesses = sides.map((side) => {
      const last = side.rounds.at(-1);
      if (!last || !last.ms) return null;
      return side.done ? last.ms : (last.ms * this.limit) / last.tokens;
    });
    return guesses.includes(null) ? null : Math.max(...guesses);
  }

  begin() {
    const needed = WATCH_MS / (this.complete ? this.total() : this.expected());
    this.slowed = needed > 1.5 ? Number(needed.toPrecision(2)) : 1;
    this.factor = this.chosen ?? this.slowed;
    this.live = !this.complete && this.factor === 1;
    this.play();
  }

  play() {
    if (this.ended) this.rewind();
    this.playing = true;
    if (this.live) this.advance();
    else this.startFrames();
  }

  pause() {
    this.playing = false;
    this.stopFrames();
  }

  // Everything there is, at once; then whatever follows.
  skip() {
    if (this.ended) return;
    this.eager = true;
    this.play();
  }

  choose(factor) {
    this.chosen = factor;
    if (this.factor === null) return;
    this.factor = factor ?? this.slowed;
    this.live = this.live && this.factor === 1;
    if (this.ended || this.playing) this.play();
  }

  rewind() {
    Object.assign(this, { position: 0, ended: false, eager: false, live: false });
    for (const side of Object.values(this.sides)) side.shown = 0;
    this.onDraw(this, true);
  }

  startFrames() {
    this.stopFrames();
    let before = performance.now();
    const tick = (now) => {
      this.frame = requestAnimationFrame(tick);
      if (now - before < DRAW_MS[this.complete ? "done" : "computing"]) return;
      this.advance((now - before) / this.factor);
      before = now;
    };
    this.frame = requestAnimationFrame(tick);
  }

  stopFrames() {
    cancelAnimationFrame(this.frame);
  }

  advance(ms = Infinity) {
    const horizon = this.horizon();
    this.position = this.eager ? horizon : Math.min(horizon, this.position + ms);
    this.onDraw(this, false);
    if (!this.complete || this.position < this.total()) return;
    this.stopFrames();
    Object.assign(this, { playing: false, ended: true });
    this.onEnd();
  }

  // One after the other and live, the speculative clock starts where the plain one ends.
  offset(name) {
    return this.sequential && this.live && name === "speculative" ? this.end("plain") : 0;
  }

  end(name) {
    return this.sides[name].rounds.at(-1)?.ms ?? 0;
  }

  total() {
    return Math.max(...Object.keys(this.sides).map((name) => this.offset(name) + this.end(name)));
  }

  // How far playback can go: to the end, or to what both sides have reached.
  horizon() {
    const running = Object.keys(this.sides).filter((name) => !this.sides[name].done);
    if (this.complete || !running.length || (this.sequential && this.live)) return this.total();
    return Math.min(...running.map((name) => this.end(name)));
  }

  // Rounds of a side that became visible since the last call.
  take(name) {
    const side = this.sides[name];
    const from = side.shown;
    const until = this.position - this.offset(name) + 1e-6;
    while (side.shown < side.rounds.length && side.rounds[side.shown].ms <= until) side.shown += 1;
    return side.rounds.slice(from, side.shown);
  }
}
