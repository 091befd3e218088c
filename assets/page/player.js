// Playback of two recorded sides in step with each other, slowed by a factor.
//
// Position is in milliseconds of the sides' own clocks. While a recording still grows, the position never
// passes what both sides have reached; that is what makes live streaming the same thing at factor 1.

const WATCH_MS = 4000; // what a run should take to watch
const LAG_MS = 200; // how far live playback stays behind, so that it moves smoothly between updates
const DRAW_MS = { live: 100, recorded: 33 }; // drawing takes time from an engine on the same machine

class Player {
  constructor(onDraw, onEnd) {
    this.onDraw = onDraw;
    this.onEnd = onEnd;
    this.frame = null;
    this.reset({});
  }

  reset({ limit = 0, sequential = false }) {
    this.sides = { plain: this.newSide(), speculative: this.newSide() };
    Object.assign(this, { limit, sequential, position: 0, complete: false, playing: false });
    Object.assign(this, { factor: null, chosen: null, live: false, eager: false, ended: false });
    cancelAnimationFrame(this.frame);
  }

  newSide() {
    return { rounds: [], done: false, shown: 0 };
  }

  add(name, rounds, done) {
    const side = this.sides[name];
    side.rounds.push(...rounds);
    side.done = done;
    if (!this.playing && !this.ended && this.expected() !== null) this.begin();
  }

  finish() {
    this.complete = true;
    if (!this.playing && !this.ended) this.begin();
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
    this.live = !this.complete && this.slowed === 1;
    this.factor = this.chosen ?? this.slowed;
    this.play();
  }

  play() {
    if (this.ended) this.rewind();
    this.playing = true;
    this.before = null;
    this.frame = requestAnimationFrame((now) => this.tick(now));
  }

  pause() {
    this.playing = false;
    cancelAnimationFrame(this.frame);
  }

  skip() {
    this.eager = true;
    if (!this.playing) this.play();
  }

  // Speed as chosen by the reader; null goes back to about four seconds.
  choose(factor) {
    this.chosen = factor;
    this.factor = factor ?? this.slowed;
    if (this.ended) this.play();
  }

  rewind() {
    Object.assign(this, { position: 0, ended: false, eager: false, live: false });
    for (const side of Object.values(this.sides)) side.shown = 0;
    this.onDraw(this, true);
  }

  tick(now) {
    const elapsed = now - (this.before ?? now);
    if (this.before !== null && elapsed < DRAW_MS[this.complete ? "recorded" : "live"]) {
      this.frame = requestAnimationFrame((later) => this.tick(later));
      return;
    }
    this.before = now;
    const horizon = this.horizon();
    const pace = this.live && !this.complete ? Math.min(1, (horizon - this.position) / LAG_MS) : 1;
    this.position = this.eager ? horizon : Math.min(horizon, this.position + (elapsed * pace) / this.factor);
    this.onDraw(this, false);
    if (this.complete && this.position >= this.total()) {
      Object.assign(this, { playing: false, ended: true, eager: false });
      this.onEnd();
      return;
    }
    this.frame = requestAnimationFrame((later) => this.tick(later));
  }

  // One after the other and live, the speculative clock starts where the plain one ends.
  offset(name) {
    if (!(this.sequential && this.live) || name === "plain") return 0;
    return this.sides.plain.done || this.complete ? this.end("plain") : Infinity;
  }

  end(name) {
    return this.sides[name].rounds.at(-1)?.ms ?? 0;
  }

  total() {
    return Math.max(...Object.keys(this.sides).map((name) => this.offset(name) + this.end(name)), 0);
  }

  // How far playback may go: to the end, or to what both sides have reached.
  horizon() {
    const running = Object.keys(this.sides).filter((name) => !this.sides[name].done);
    if (this.complete || !running.length) return this.total();
    if (this.sequential && this.live) return this.end("plain") + this.end("speculative");
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
