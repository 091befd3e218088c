// The race view: reads the lines a run sends, plays them, and shows verdict and figures at the end.

class Race {
  constructor(element, figures) {
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
    find(".download").addEventListener("click", () => this.download());
    this.read = 0; // events of the current run
  }

  // Lines of events, some of which may have been read before; the last update of a run has them all.
  receive(text) {
    for (const line of (text ?? "").split("\n").filter(Boolean)) {
      const event = JSON.parse(line);
      if (event.at === 0 && event.run !== this.run) this.begin(event);
      else if (event.run === this.run && event.at === this.read) this.handle(event);
      else continue;
      this.read = event.at + 1;
    }
  }

  handle(event) {
    const seen = this.player.ended;
    if (event.kind === "lap") this.player.add(event.side, event.rounds, event.done);
    if (event.kind === "end") this.result = event; // once, and again with the figures of its repeats
    if (event.kind === "error") this.failure = event.text;
    if (event.kind === "end" || event.kind === "error") this.player.finish();
    if (event.kind === "end" && seen) this.ended();
  }

  begin(event) {
    this.result = this.failure = null;
    this.run = event.run;
    this.prompt = event.prompt;
    this.player.reset({ limit: event.max_new_tokens, sequential: event.sequential });
    this.root.dataset.state = "waiting";
    this.find(".figures").textContent = "";
    const verdict = this.find(".verdict");
    if (verdict.getBoundingClientRect().top > innerHeight - 80) verdict.scrollIntoView({ behavior: "smooth" });
    for (const chart of Object.values(this.charts)) chart.resize();
    this.clear();
  }

  clear() {
    this.marked = null;
    for (const pane of Object.values(this.panes)) pane.reset(this.prompt);
    for (const chart of Object.values(this.charts)) chart.reset(this.run);
    for (const side of ["plain", "speculative"]) this.track(side, 0, null);
  }

  say(text) {
    if (this.find(".reason").textContent === text) return; // a live region: repeat nothing
    this.find(".headline").textContent = "";
    this.find(".reason").textContent = text;
    this.find(".agreement").textContent = "";
    this.find(".divergence").textContent = "";
  }

  draw(player, rewound) {
    if (rewound) this.clear();
    if (this.root.dataset.state !== "playing") {
      this.root.dataset.state = "playing";
      this.root.dataset.tone = "";
    }
    this.say(this.pace(player));
    const total = player.complete ? player.total() : Math.max(player.expected() ?? 0, player.horizon());
    for (const name of ["plain", "speculative"]) {
      const rounds = player.take(name);
      this.panes[name].append(rounds);
      this.plot(name, rounds, player);
      const side = player.sides[name];
      const last = side.rounds[side.shown - 1];
      const finished = side.done && side.shown === side.rounds.length;
      const ms = finished ? last?.ms ?? 0 : Math.max(player.position - player.offset(name), 0);
      this.track(name, total ? Math.min(ms / total, 1) : 0, last);
    }
    this.find(".toggle").textContent = player.playing ? "Pause" : "Play";
  }

  plot(name, rounds, player) {
    if (!rounds.length) return;
    const points = rounds.map((round) => [round.ms, round.tokens]);
    this.charts.clock.add(name === "plain" ? [points, []] : [[], points]);
    if (name === "plain") return;
    const first = player.sides[name].shown - rounds.length;
    const judged = rounds.map((round, index) => [first + index, round]).filter(([number]) => number > 0);
    const known = judged.filter(([, round]) => round.proposed !== null);
    this.charts.acceptance.add([
      known.map(([number, round]) => [number, round.accepted]),
      known.map(([number, round]) => [number, round.proposed - round.accepted]),
      known.map(([number, round]) => [number, round.alpha]),
    ]);
  }

  track(name, share, round) {
    const track = this.find(`.track.${name}`);
    track.querySelector("i").style.width = `${share * 100}%`;
    track.querySelector("output").textContent = round ? `${round.tokens} tokens · ${Pane.format("ms", round.ms)} ms` : "";
  }

  pace(player) {
    const seconds = (ms) => `${(ms / 1000).toPrecision(2)} s`;
    if (player.live && !player.complete) return "Live. The two sides take turns on this machine; each clock counts only its own time.";
    if (player.factor === 1) return "Played in real time, each side on its own clock.";
    const long = player.complete ? player.total() : player.expected();
    return `Played back ${player.factor}× slower than it ran: ${seconds(long)} of computation, shown in ${seconds(long * player.factor)}.`;
  }

  ended() {
    for (const chart of Object.values(this.charts)) chart.flush();
    this.find(".toggle").textContent = "Replay";
    const { result } = this;
    this.root.dataset.state = result ? "done" : "failed";
    if (!result) {
      this.say(this.failure ? "The run failed. What had been decoded until then is shown below." : "");
      return;
    }
    this.root.dataset.tone = result.tone;
    this.find(".headline").textContent = result.headline;
    this.find(".reason").textContent = result.stopped ? `Stopped early. ${result.reason}` : result.reason;
    this.find(".agreement").textContent = `${result.identical ? "✓" : "≠"} ${result.agreement}`;
    this.find(".agreement").dataset.identical = result.identical;
    this.find(".divergence").textContent = result.divergence_reason;
    this.find(".figures").innerHTML = result.figures; // escaped by the server
    if (this.marked === this.run) return;
    this.marked = this.run;
    for (const pane of Object.values(this.panes)) pane.mark(result.divergence);
  }

  toggle() {
    if (this.player.playing) this.player.pause();
    else this.player.play();
    this.find(".toggle").textContent = this.player.playing ? "Pause" : "Play";
  }

  download() {
    if (!this.result) return;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([this.result.record], { type: "application/json" }));
    link.download = "specdemo-comparison.json";
    link.click();
    URL.revokeObjectURL(link.href);
  }
}
