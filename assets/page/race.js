// The race view: reads the lines a run sends, plays them, and shows verdict and figures at the end.

const SIDES = ["plain", "speculative"];

class Race {
  constructor(element, figures, trigger) {
    const find = (selector) => element.querySelector(selector);
    this.root = find(".race");
    this.find = find;
    const tip = find(".tip");
    this.panes = { plain: new Pane(find(".pane.plain"), tip), speculative: new Pane(find(".pane.speculative"), tip) };
    this.charts = {
      clock: new Chart(find(".chart.clock"), figures.clock),
      acceptance: new Chart(find(".chart.acceptance"), figures.acceptance),
    };
    this.player = new Player((player, rewound) => this.draw(player, rewound), () => this.ended());
    find(".toggle").addEventListener("click", () => this.toggle());
    find(".skip").addEventListener("click", () => this.player.skip());
    find(".speed").addEventListener("change", (event) => this.player.choose(Number(event.target.value) || null));
    find(".discarded-shown").addEventListener("change", (event) => {
      this.root.classList.toggle("with-discarded", event.target.checked);
    });
    find(".rounds").addEventListener("click", () => trigger("select", {}));
    find(".as-written").addEventListener("change", ({ target }) => this.root.classList.toggle("raw", target.checked));
    new Share(find(".share"), () => this.result?.record, trigger);
    this.root.addEventListener("anew", () => this.anew());
    this.read = 0; // events of the current run
    this.lines = [];
  }

  // Lines of events, some of which may have been read before; the last update of a run has them all.
  receive(text) {
    let news = false;
    const { result } = this;
    for (const line of (text ?? "").split("\n").filter(Boolean)) {
      const event = JSON.parse(line);
      if (event.at === 0 && event.run !== this.run) this.begin(event);
      else if (event.run === this.run && event.at === this.read) this.handle(event);
      else continue;
      this.read = event.at + 1;
      this.lines[event.at] = line;
      news = true;
    }
    if (!news) return;
    if (this.result?.record && result !== this.result) this.tell();
    if (!this.player.complete) this.player.heard(Boolean(this.result || this.failure));
    else if (this.player.ended) this.ended(); // with what its repeats found
  }

  handle(event) {
    if (event.kind === "lap") this.player.add(event.side, event.rounds, event.done);
    if (event.kind === "lap") this.moves.push(...(event.moves ?? []));
    if (event.kind === "end") this.result = event; // once, and again with the figures of its repeats
    if (event.kind === "error") this.failure = event.text;
  }

  // That the run has its result, once and again.
  tell() {
    const { lines, result } = this;
    this.root.dispatchEvent(new CustomEvent("finished", { detail: { lines, result } }));
  }

  // `names` and `prompts`, by side, where the sides are two runs instead of plain and speculative decoding.
  begin(event) {
    this.result = this.failure = null;
    this.lines = [];
    this.moves = []; // of settings, by round
    this.names = event.names;
    this.prompts = event.prompts ?? Object.fromEntries(SIDES.map((side) => [side, event.prompt]));
    Object.assign(this, { run: event.run, chat: event.chat, history: event.history, served: event.served });
    for (const side of SIDES) {
      const name = this.names?.[side] ?? side;
      this.find(`.pane.${side} h2`).textContent = name[0].toUpperCase() + name.slice(1);
      for (const place of [`.track.${side} span`, `.key.${side}`]) this.find(place).textContent = name;
    }
    this.player.reset({ limit: event.max_new_tokens, sequential: event.sequential });
    this.root.dataset.state = "waiting";
    this.root.classList.toggle("chat", Boolean(event.chat));
    this.find(".figures").textContent = "";
    if (this.find(".verdict").getBoundingClientRect().top < 0) scrollTo({ top: 0 });
    this.clear();
  }

  clear() {
    this.lead = null; // when the first side reached its end
    this.marked = null;
    for (const side of SIDES) this.panes[side].reset(this.prompts[side], this.chat, this.history);
    for (const chart of Object.values(this.charts)) chart.reset(this.run);
    this.say("");
    this.bars(this.player);
  }

  // A new chat: nothing has been said yet.
  anew() {
    this.begin({ run: null, prompt: "", history: "", max_new_tokens: 0 });
    this.root.dataset.state = "idle";
  }

  say(text) {
    if (this.find(".reason").textContent === text) return; // a live region: repeat nothing
    this.find(".reason").textContent = text;
    for (const name of ["agreement", "divergence", "doubts", "made-by"]) this.find(`.${name}`).textContent = "";
  }

  draw(player, rewound) {
    if (rewound) this.clear();
    if (this.root.dataset.state !== "playing") {
      this.root.dataset.state = "playing";
      this.root.dataset.tone = "";
    }
    this.root.dataset.live = player.live && !player.complete;
    this.say(this.pace(player));
    for (const name of SIDES) {
      const rounds = player.take(name);
      this.panes[name].append(rounds, player.at(name).ms);
      this.plot(name, rounds, player);
    }
    this.bars(player);
    this.find(".toggle").textContent = player.playing ? "Pause" : "Play";
  }

  plot(name, rounds, player) {
    if (!rounds.length) return;
    const points = rounds.map((round) => [round.ms / 1000, round.tokens]);
    this.charts.clock.add(name === "plain" ? [points, []] : [[], points]);
    if (name === "plain") return this.plotOther(rounds, player);
    const first = player.sides[name].shown - rounds.length;
    for (const { round, text } of this.moves) {
      if (round < first || round >= first + rounds.length) continue;
      this.charts.clock.mark((player.sides[name].rounds[round - 1]?.ms ?? 0) / 1000, text);
      this.charts.acceptance.mark(round - 0.5, text);
    }
    const judged = rounds.map((round, index) => [first + index, round]).filter(([number]) => number > 0);
    const known = judged.filter(([, round]) => round.proposed !== null);
    this.charts.acceptance.add([
      known.map(([number, round]) => [number, round.accepted]),
      known.map(([number, round]) => [number, round.proposed - round.accepted]),
      known.map(([number, round]) => [number, round.alpha]),
      [],
    ]);
  }

  // The running α of a second speculative run.
  plotOther(rounds, player) {
    if (!this.names) return;
    const first = player.sides.plain.shown - rounds.length;
    this.charts.acceptance.add([[], [], [], rounds.map(({ alpha }, index) => [first + index, alpha]).filter(([number]) => number > 0)]);
  }

  // Tokens of the limit; once both texts have ended, of the longer one. The lead stays as it was at the first end.
  bars(player) {
    const [plain, speculative] = SIDES.map((name) => player.at(name));
    const goal = plain.finished && speculative.finished ? Math.max(plain.tokens, speculative.tokens) : player.limit;
    for (const [name, side] of [["plain", plain], ["speculative", speculative]]) {
      const track = this.find(`.track.${name}`);
      track.querySelector("i").style.width = `${goal ? (100 * side.tokens) / goal : 0}%`;
      track.classList.toggle("finished", side.finished);
      const count = side.finished ? `${side.tokens} tokens` : `${side.tokens} of ${player.limit}`;
      track.querySelector("output").textContent = side.tokens ? `${count} · ${Pane.time(side.ms)}` : "";
    }
    if (player.sequential && player.live) return; // they do not run side by side
    const lead = this.lead ?? speculative.tokens - plain.tokens;
    if (plain.finished || speculative.finished) this.lead = lead;
    const sign = lead > 0 ? "+" : "−";
    this.find(".headline").textContent = lead ? `${sign}${Math.abs(lead)} token${Math.abs(lead) === 1 ? "" : "s"}` : "";
    if (this.root.dataset.state === "playing") this.root.dataset.tone = lead > 0 ? "faster" : lead < 0 ? "slower" : "";
  }

  pace(player) {
    if (player.live && !player.complete && this.served) return "Live, one slice behind: each side as its server's answer arrives.";
    if (player.live && !player.complete) return "Live, one slice behind: the sides take turns on this machine, and each clock counts only its own time.";
    if (player.factor === 1) return "Played in real time, each side on its own clock.";
    const long = player.complete ? player.total() : player.expected();
    return `Played back ${player.factor}× slower than it ran: ${Pane.time(long)} of computation, shown in ${Pane.time(long * player.factor)}.`;
  }

  ended() {
    for (const chart of Object.values(this.charts)) setTimeout(() => chart.flush());
    this.find(".toggle").textContent = "Replay";
    const { result } = this;
    this.root.dataset.state = result ? "done" : "failed";
    if (!result) {
      this.say(this.failure ? "The run failed. What had been decoded until then is shown below." : "");
      return;
    }
    this.root.dataset.tone = result.tone;
    this.find(".share").hidden = !result.record;
    this.find(".headline").textContent = result.headline;
    this.find(".reason").textContent = result.stopped ? `Stopped early. ${result.reason}` : result.reason;
    this.find(".agreement").textContent = `${result.identical ? "✓" : "≠"} ${result.agreement}`;
    this.find(".agreement").dataset.identical = result.identical;
    this.find(".divergence").textContent = result.divergence_reason;
    this.find(".doubts").textContent = result.doubts.join(" ");
    this.find(".made-by").textContent = result.made_by;
    this.find(".figures").innerHTML = result.figures; // escaped by the server
    if (this.marked === this.run) return;
    this.marked = this.run;
    for (const pane of Object.values(this.panes)) pane.mark(result.divergence);
  }

  toggle() {
    if (this.player.playing) this.player.pause();
    else this.player.play();
  }
}
