// The page's views by name, each mounted on the element that Gradio made for it.

import { Anatomy } from "./anatomy.js";
import { Examples } from "./ask.js";
import { Board, Catalogue } from "./board.js";
import * as gradio from "./gradio.js";
import { Past } from "./past.js";
import { Race } from "./race.js";

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
  board: ({ element }) => new Board(element),
  catalogue: ({ element, trigger }) => new Catalogue(element, trigger),
  examples: ({ element }) => new Examples(element),
  race: mountRace,
};

/** @param {string} name @param {Widget} widget */
export function mount(name, widget) {
  const view = VIEWS[name](widget);
  widget.watch("value", () => view.receive(widget.props.value));
  view.receive(widget.props.value);
}

/** The run that the race shows. @type {import("./race.js").Finished | null} */
let finished = null;

/** The race, with the reader's last runs; the key P enlarges it for an audience. @param {Widget} widget */
function mountRace({ element, trigger }) {
  const race = new Race(element, trigger);
  race.root.addEventListener("finished", (event) => { finished = /** @type {CustomEvent} */ (event).detail; });
  new Past(/** @type {HTMLElement} */ (element.querySelector(".past")), race).last();
  gradio.watchRun((busy) => race.asked(busy));
  document.addEventListener("keydown", ({ key, target, ctrlKey, metaKey, altKey }) => {
    const typing = target instanceof Element && target.closest("input, textarea, select");
    if (key === "p" && !typing && !ctrlKey && !metaKey && !altKey) document.body.classList.toggle("presenting");
  });
  return race;
}

/** The anatomy of the run that the race shows; its tab is built when it first opens. @param {Widget} widget */
function mountAnatomy({ element }) {
  const anatomy = new Anatomy(element);
  anatomy.receive(finished);
  document.querySelector(".race .screen")?.parentElement?.addEventListener("finished", (event) => anatomy.receive(/** @type {CustomEvent} */ (event).detail));
  return { receive() {} };
}

/** Open or close a part of the rail by the id of its button. @param {string} id */
export function toggle(id) {
  document.querySelector("#rail")?.classList.toggle(`${id}-open`);
}

export { saveMade } from "./files.js";
export { openCompare } from "./gradio.js";
