// The reader's last runs, stored in this browser only: to reopen them, and to compare those of one prompt.

import { pack, unpack } from "./files.js";
import { formatted } from "./pane.js";
import { make, onPress, part } from "./rounds.js";
import { isObject, isText, restore, store } from "./storage.js";

const MOST_RUNS = 40; // browsers have room for 5 MB, and a long run takes about 100 kB
const MOST_ROWS = 6; // of the table beside the controls
const RUNS = "specdemo-runs";
const SHOWN = "specdemo-run"; // this tab's run, shown again after a reload even if other tabs ran since

/** The stored runs, the latest first. @returns {StoredRun[]} */
export function storedRuns() {
  const runs = restore(RUNS);
  return Array.isArray(runs) ? runs.filter(isRun) : [];
}

/** @param {unknown} value @returns {value is StoredRun} */
function isRun(value) {
  if (!isObject(value) || !isObject(value.row)) return false;
  const { row, when } = value;
  const numbers = [when, row.accepted, row.length, row.speedup, row.low, row.high].map((number) => number ?? 0);
  return numbers.every(Number.isFinite) && [value.run, value.prompt, value.headline, value.packed, row.setting].every(isText);
}

/** The row of a run: runs of one group differ in the setting alone. @param {Finished} finished @returns {Row} */
export function rowOf({ record: { pair, prompt, settings, summary } }) {
  const [low, high] = summary.speedup_interval ?? [];
  const { engine, drafter, max_new_tokens, do_sample } = settings;
  return {
    group: JSON.stringify([prompt, pair.name, engine, drafter, max_new_tokens, do_sample]),
    setting: summary.strategy ?? "earlier version", // which did not name it
    accepted: summary.acceptance_rate, length: summary.mean_acceptance_length, speedup: summary.speedup, low, high,
  };
}

/** The run that this tab shows, or the last of all tabs. @param {StoredRun[]} runs */
const latestOf = (runs) => runs.find(({ run }) => run === restore(SHOWN, "sessionStorage")) ?? runs[0];

/** @param {Row} row */
function speedupText({ speedup, low, high }) {
  const interval = high ? ` (${low?.toFixed(2)}–${high.toFixed(2)})` : "";
  return speedup ? `${speedup.toFixed(2)}×${interval}` : "–";
}

export class Past {
  /** @param {HTMLElement} element @param {import("./race.js").Race} race plays a run that is opened */
  constructor(element, race) {
    this.element = element;
    this.race = race;
    this.list = part(element, "ol");
    race.root.addEventListener("finished", (event) => this.add(/** @type {CustomEvent} */ (event).detail));
    onPress(element, ".forget", () => this.write([]));
    onPress(this.list, ".open", ({ dataset }) => this.open(dataset.run ?? ""));
    addEventListener("storage", ({ key }) => key === RUNS && this.draw()); // another tab's
    this.draw();
  }

  /** Store as many as the browser has room for. @param {StoredRun[]} runs */
  write(runs) {
    let fitting = runs.slice(0, MOST_RUNS);
    while (!store(RUNS, fitting) && fitting.length) fitting = fitting.slice(0, -1);
    this.draw(fitting);
  }

  /** @param {Finished} finished */
  async add(finished) {
    const { run, record: { prompt, summary: { headline, made_by } } } = finished;
    store(SHOWN, run, "sessionStorage");
    const packed = await pack(JSON.stringify(finished));
    const runs = storedRuns();
    const when = runs.find((other) => other.run === run)?.when ?? Date.now();
    const others = runs.filter((other) => other.run !== run);
    const stored = { run, when, prompt, headline, made_by, row: rowOf(finished), packed };
    this.write([stored, ...others].sort((a, b) => b.when - a.when));
  }

  /** @param {StoredRun[]} runs */
  draw(runs = storedRuns()) {
    this.element.hidden = !runs.length;
    this.list.replaceChildren(...runs.map((run) => this.row(run)));
    this.compare(runs);
  }

  /** @param {StoredRun} stored */
  row({ run, when, prompt, headline, made_by }) {
    const [row, open] = [make("li"), make("button", "", "open")];
    row.dataset.run = open.dataset.run = run;
    open.append(make("b", headline), make("span", prompt));
    row.append(open, make("small", `${new Date(when).toLocaleString()} · ${made_by}`));
    return row;
  }

  /** Show the last run of each setting with the prompt of the latest run, once there are two. A clearly fastest one stands out. @param {StoredRun[]} runs */
  compare(runs) {
    const latest = latestOf(runs);
    /** @type {Map<string, Row>} */
    const rows = new Map();
    for (const { row } of runs) if (row.group === latest?.row.group && !rows.has(row.setting)) rows.set(row.setting, row);
    const { compare } = new Intl.Collator(undefined, { numeric: true });
    const shown = [...rows.values()].slice(0, MOST_ROWS).sort((a, b) => compare(a.setting, b.setting));
    const best = shown.find((row) => shown.every((other) => other === row || (row.low ?? 0) > (other.high ?? Infinity)));
    const lines = shown.map((row) => {
      const line = make("tr", "", row === best ? "best" : "");
      const cells = [row.setting, formatted("alpha", row.accepted), row.length?.toFixed(1) ?? "–", speedupText(row)];
      line.append(...cells.map((text) => make("td", text)));
      return line;
    });
    document.querySelector("#own-runs tbody")?.replaceChildren(...(shown.length > 1 ? lines : []));
  }

  /** A stored run; null if it cannot be unpacked or is of schema 2, and then it is dropped. @param {string} run @returns {Promise<Finished | null>} */
  async finished(run) {
    try {
      const finished = JSON.parse(await unpack(storedRuns().find((other) => other.run === run)?.packed ?? ""));
      if (!finished.record.settings_updates) throw new TypeError("schema 2");
      return finished;
    } catch {
      this.write(storedRuns().filter((other) => other.run !== run));
      return null;
    }
  }

  /** Show this tab's last run at its end, else the last run of any tab. False if there is none and nothing has run here. */
  async last() {
    const latest = latestOf(storedRuns());
    const finished = latest && (await this.finished(latest.run));
    if (this.race.request || !finished) return Boolean(this.race.request);
    this.race.open(finished);
    this.race.player.skip();
    return true;
  }

  /** @param {string} run */
  async open(run) {
    store(SHOWN, run, "sessionStorage");
    const finished = await this.finished(run);
    if (!finished) return;
    this.race.open(finished, true);
    this.race.root.scrollIntoView({ block: "start" });
  }
}
