// The page's views by name, each mounted on the element that Gradio made for it.

import { Anatomy } from "./anatomy.js";
import { board } from "./board.js";
import { unzipped } from "./files.js";
import * as gradio from "./gradio.js";
import { Past } from "./past.js";
import { Race } from "./race.js";
import { restore, store } from "./storage.js";

/**
 * Gradio's arguments to a view's script.
 * @typedef {object} Widget
 * @property {HTMLElement} element
 * @property {(event: string, data: object) => void} trigger
 * @property {{ value: any }} props
 * @property {(name: string, changed: () => void) => void} watch
 */

/** @type {Record<string, (widget: Widget) => { receive: (value: any) => void }>} */
const VIEWS = {
  anatomy: mountAnatomy,
  board: ({ element }) => ({ receive: (parts) => board(/** @type {HTMLElement} */ (element.querySelector(".board")), JSON.parse(parts || "[]")) }),
  catalogue: mountCatalogue,
  examples: mountExamples,
  race: mountRace,
};

/** @param {string} name @param {Widget} widget */
export function mount(name, widget) {
  const view = VIEWS[name](widget);
  widget.watch("value", () => view.receive(widget.props.value));
  view.receive(widget.props.value);
}

const RUNNING = "specdemo-running"; // whether this tab has a run that has not ended

/** @type {Race | undefined} */ let race;

/** The race, with the reader's last runs; the key P enlarges it for an audience. @param {Widget} widget */
function mountRace({ element, trigger }) {
  const view = race = new Race(element, trigger);
  const past = new Past(/** @type {HTMLElement} */ (element.querySelector(".past")), race);
  if (!restore(RUNNING, "sessionStorage")) past.last().then((shown) => (shown ? undefined : demonstrate(view)));
  else gradio.note("The run ended when the page was reloaded.", 20_000); // instead of an earlier run
  store(RUNNING, false, "sessionStorage");
  document.addEventListener("keydown", ({ key, target, ctrlKey, metaKey, altKey }) => {
    const typing = target instanceof Element && target.closest("input, textarea, select");
    if (key === "p" && !typing && !ctrlKey && !metaKey && !altKey) document.body.classList.toggle("presenting");
    if (key === "Escape") document.body.classList.remove("presenting");
  });
  race.find(".presenter button").addEventListener("click", () => document.documentElement.requestFullscreen());
  return race;
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
  const isItsPair = () => document.querySelector("#header [data-pair]")?.getAttribute("data-pair") === record.pair.name;
  if (typed || !isItsPair() || view.request || view.root.classList.contains("requested")) return;
  view.open({ run: "recording", record, anatomy: null });
  const header = /** @type {HTMLElement} */ (document.querySelector("#header"));
  new MutationObserver(() => isItsPair() || view.endRecording()).observe(header, { childList: true, subtree: true });
}

/** A run was requested, or is over. @param {boolean} busy */
export function setRequested(busy) {
  store(RUNNING, busy, "sessionStorage");
  race?.setRequested(busy);
}

/** Show the result of a search for the best setting, and close the phone's panel that may cover it. @param {string} parts as JSON */
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
  return { receive() {} };
}

/** The catalogue's cards, whose buttons become events of the widget. @param {Widget} widget */
function mountCatalogue({ element, trigger }) {
  return mountList(element, ".list", (button) => {
    trigger(button.dataset.action ?? "", { name: /** @type {HTMLElement} */ (button.closest("[data-name]")).dataset.name });
  });
}

/** The menu of examples beside the prompt. @param {Widget} widget */
function mountExamples({ element }) {
  return mountList(element, ".menu", (button, menu) => {
    gradio.setPrompt(button.dataset.prompt ?? "");
    menu.hidePopover();
  });
}

/** A list that the server renders, and escapes. @param {HTMLElement} element @param {string} selector @param {(button: HTMLButtonElement, list: HTMLElement) => void} press */
function mountList(element, selector, press) {
  const list = /** @type {HTMLElement} */ (element.querySelector(selector));
  let shown = "";
  list.addEventListener("click", ({ target }) => {
    const button = target instanceof Element ? target.closest("button") : null;
    if (button && !button.matches(".answer")) press(button, list);
  });
  return {
    receive(/** @type {string} */ html) {
      if (html !== shown) list.innerHTML = html; // a button that is being clicked must not be replaced
      shown = html;
    },
  };
}

/** Open or close a part of the rail by the id of its button. @param {string} id */
export const toggle = (id) => document.querySelector("#rail")?.classList.toggle(`${id}-open`);
