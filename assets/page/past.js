// The reader's last runs, kept in this browser only: opened again, searched, or two of them overlaid.

const RUNS = "specdemo-runs";
const MOST_RUNS = 40;

class Past {
  // Shows the kept runs in `element`, and plays them in `race`.
  constructor(element, race) {
    Object.assign(this, { element, race, chosen: [] });
    this.list = element.querySelector("ol");
    this.search = element.querySelector("input[type=search]");
    this.overlay = element.querySelector(".overlay");
    race.root.addEventListener("finished", ({ detail }) => this.keep(detail.lines, detail.result));
    this.search.addEventListener("input", () => this.draw());
    this.overlay.addEventListener("click", () => this.overlaid());
    element.querySelector(".forget").addEventListener("click", () => this.write([]));
    this.list.addEventListener("click", (event) => this.clicked(event));
    this.list.addEventListener("change", ({ target }) => this.choose(target.value, target.checked));
    this.draw();
  }

  // Newest first.
  read() {
    try {
      return JSON.parse(localStorage.getItem(RUNS) ?? "[]");
    } catch {
      return []; // somebody else wrote it
    }
  }

  // As many as the browser has room for.
  write(runs) {
    for (let kept = runs.slice(0, MOST_RUNS); ; kept = kept.slice(0, -1)) {
      try {
        localStorage.setItem(RUNS, JSON.stringify(kept));
      } catch {
        if (kept.length) continue;
      }
      return this.draw(kept);
    }
  }

  async keep(lines, result) {
    const { run, prompt } = JSON.parse(lines[0]);
    const { headline, made_by, words } = result;
    const events = await pack(lines.join("\n"));
    const runs = this.read();
    const others = runs.filter((other) => other.run !== run);
    const when = runs.find((other) => other.run === run)?.when ?? Date.now();
    this.write([{ run, when, prompt, headline, made_by, words, events }, ...others].sort((a, b) => b.when - a.when));
  }

  draw(runs = this.read()) {
    const wanted = this.search.value.trim().toLowerCase();
    const found = runs.filter(({ prompt, headline, made_by }) => `${prompt} ${headline} ${made_by}`.toLowerCase().includes(wanted));
    this.element.hidden = !runs.length;
    this.chosen = this.chosen.filter((run) => runs.some((other) => other.run === run));
    this.list.replaceChildren(...found.map((run) => this.row(run)));
    this.element.querySelector(".none").hidden = found.length > 0;
    this.overlay.disabled = this.chosen.length !== 2;
  }

  row({ run, when, prompt, headline, made_by }) {
    const row = this.element.querySelector("template").content.firstElementChild.cloneNode(true);
    row.dataset.run = run;
    const box = row.querySelector("input");
    Object.assign(box, { value: run, checked: this.chosen.includes(run), ariaLabel: `Choose ${prompt} to overlay` });
    row.querySelector("b").textContent = headline;
    row.querySelector(".open span").textContent = prompt;
    row.querySelector("small").textContent = `${new Date(when).toLocaleString()} · ${made_by}`;
    return row;
  }

  // The latest two.
  choose(run, chosen) {
    const others = this.chosen.filter((other) => other !== run);
    this.chosen = chosen ? [...others, run].slice(-2) : others;
    this.draw();
  }

  clicked({ target }) {
    const run = target.closest("li")?.dataset.run;
    if (target.closest(".open")) this.open(run);
    if (target.closest(".drop")) this.write(this.read().filter((other) => other.run !== run));
  }

  async lines(run) {
    const { events } = this.read().find((other) => other.run === run);
    return (await unpack(events)).split("\n").filter(Boolean);
  }

  // The last run, as it ended, on a page that has not run anything yet.
  async last() {
    const [latest] = this.read();
    if (!latest) return;
    const lines = await this.lines(latest.run);
    if (this.race.run) return;
    this.race.receive(lines.join("\n"));
    this.race.player.skip();
  }

  async open(run) {
    this.show(await this.lines(run));
  }

  show(lines) {
    this.race.receive(lines.join("\n"));
    this.race.root.scrollIntoView({ block: "start" });
  }

  // The speculative sides of two runs, the earlier one in the place of plain decoding.
  async overlaid() {
    const order = this.read().map(({ run }) => run).filter((run) => this.chosen.includes(run)).reverse();
    const runs = await Promise.all(order.map(async (run) => (await this.lines(run)).map((line) => JSON.parse(line))));
    const [first, second] = runs.map((events) => ({ ...events[0], end: events.at(-1), laps: events.filter(({ side }) => side === "speculative") }));
    const events = [
      {
        ...second, kind: "start", end: undefined, laps: undefined,
        max_new_tokens: Math.max(first.max_new_tokens, second.max_new_tokens), sequential: false,
        prompts: { plain: first.prompt, speculative: second.prompt },
        names: { plain: own(first, second), speculative: own(second, first) },
      },
      ...first.laps.map((lap) => ({ ...lap, side: "plain" })),
      ...second.laps,
      { ...second.end, ...verdict(first.end, second.end) },
    ];
    this.show(events.map((event, at) => JSON.stringify({ ...event, at, run: order.join(" ") })));
  }
}

// What a run's settings have that the other's lack.
function own({ end: { words } }, { end }) {
  return words.filter((word) => !end.words.includes(word)).join(", ") || words[0];
}

function verdict(first, second) {
  const [left, right] = [first, second].map(({ record }) => JSON.parse(record).speculative.token_ids);
  const shared = Math.min(left.length, right.length);
  const differs = left.slice(0, shared).findIndex((id, index) => id !== right[index]);
  return {
    headline: [first, second].map(({ headline }) => headline.split("×")[0] + (headline.includes("×") ? "×" : "")).join(" · "),
    tone: "same",
    reason: `Two speculative runs, each compared with its own plain run. Left: ${first.headline}, ${first.made_by} Right: ${second.headline}, ${second.made_by}`,
    agreement: differs < 0 ? `identical output, ${shared} tokens compared` : `outputs differ from token ${differs + 1} on`,
    identical: differs < 0,
    divergence: differs < 0 ? null : differs,
    divergence_reason: "",
    doubts: [],
    made_by: "",
    stopped: false,
    figures: `<div class="two"><div>${first.figures}</div><div>${second.figures}</div></div>`,
    record: null,
  };
}

// The race view together with the runs that are kept.
function withPast(race, element) {
  new Past(element.querySelector(".past"), race).last();
  return race;
}
