// The page's views by name, each mounted on the element that Gradio made for it.

import { Anatomy } from "./anatomy.js";
import { board } from "./board.js";
import { unzipped } from "./files.js";
import * as gradio from "./gradio.js";
import { Past } from "./past.js";
import { Race } from "./race.js";
import { onPress, part } from "./rounds.js";
import { restore, store } from "./storage.js";

/** @type {Record<string, View>} */
const VIEWS = {
  anatomy: mountAnatomy,
  board: ({ element }) => (parts) => board(part(element, ".board"), JSON.parse(parts || "[]")),
  catalogue: ({ element, trigger }) => onPress(element, "[data-action]", (button) => {
    trigger(button.dataset.action ?? "", { name: button.closest("[data-name]")?.getAttribute("data-name") });
  }),
  examples: ({ element }) => onPress(element, "[data-prompt]", (button) => {
    gradio.setPrompt(button.dataset.prompt ?? "");
    part(element, ".menu").hidePopover();
  }),
  race: mountRace,
};

/** @param {string} name @param {Widget} widget */
export function mount(name, widget) {
  const receive = VIEWS[name](widget);
  if (!receive) return;
  widget.watch("value", () => receive(widget.props.value));
  receive(widget.props.value);
}

const RUNNING = "specdemo-running"; // whether this tab has a run that has not ended

/** @type {Race | undefined} */ let race;

/** The race, with the reader's last runs; the key P enlarges it for an audience. @param {Widget} widget */
function mountRace({ element, trigger }) {
  const view = race = new Race(element, trigger);
  const past = new Past(part(element, ".past"), race);
  if (!restore(RUNNING, "sessionStorage")) past.last().then((shown) => (shown ? undefined : demonstrate(view)));
  else gradio.note("The run ended when the page was reloaded.", 20_000); // instead of an earlier run
  store(RUNNING, false, "sessionStorage");
  document.addEventListener("keydown", ({ key, target, ctrlKey, metaKey, altKey }) => {
    const typing = target instanceof Element && target.closest("input, textarea, select");
    if (key === "p" && !typing && !ctrlKey && !metaKey && !altKey) document.body.classList.toggle("presenting");
    if (key === "Escape") document.body.classList.remove("presenting");
  });
  onPress(element, ".presenter button", () => document.documentElement.requestFullscreen());
  return (/** @type {string} */ events) => view.receive(events);
}

/** Show a recorded race until the visitor runs or types something, or has another pair. See CONTRIBUTING.md on how to record it. @param {Race} view */
async function demonstrate(view) {
  let typed = false;
  document.addEventListener("input", ({ target }) => {
    if (!(target instanceof Element && target.closest("#prompt"))) return;
    typed = true;
    view.endRecording();
  });
  const record = JSON.parse(await unzipped(await (await fetch(new URL("recording.json.gz", import.meta.url))).blob()));
  const header = part(document, "#header");
  const isItsPair = () => part(header, "[data-pair]").dataset.pair === record.pair.name;
  if (typed || !isItsPair() || view.request || view.root.classList.contains("requested")) return;
  view.open({ run: "recording", record, anatomy: null });
  new MutationObserver(() => isItsPair() || view.endRecording()).observe(header, { attributes: true, childList: true, subtree: true });
}

/** A run was requested, or is over. @param {boolean} busy */
export function setRequested(busy) {
  store(RUNNING, busy, "sessionStorage");
  race?.setRequested(busy);
}

/** Show what a search found, and close the phone's panel that may cover it. @param {string} parts as JSON */
export function showSearchResult(parts) {
  if (!race || !parts) return;
  board(race.find(".search-result"), JSON.parse(parts));
  if (!matchMedia("(min-width: 1101px)").matches) document.querySelector("#rail")?.classList.remove("advanced-open");
  race.find(".search-result").scrollIntoView({ block: "nearest" });
}

/** Stop was pressed: show everything computed at once. */
export const skipPlayback = () => race?.player.skip();

/** The race is no longer repeated in the background. */
export const endRepeats = () => race?.root.classList.remove("repeating");

/** The anatomy of the run on screen; Gradio builds its tab when it first opens. @param {Widget} widget */
function mountAnatomy({ element }) {
  const anatomy = new Anatomy(element);
  race?.root.addEventListener("finished", (event) => anatomy.receive(/** @type {CustomEvent} */ (event).detail));
  anatomy.receive(race?.finished ?? null);
}

/** Open or close a part of the rail by the id of its button. @param {string} id */
export const toggle = (id) => document.querySelector("#rail")?.classList.toggle(`${id}-open`);
