// The page's views by name, each mounted on the element that Gradio made for it.

import { Anatomy } from "./anatomy.js";
import { Examples, presenting } from "./ask.js";
import { Board, Catalogue } from "./board.js";
import { Chart } from "./chart.js";
import { Drop } from "./drop.js";
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

/** @type {Record<string, (widget: Widget, options: any) => { receive: (value: any) => void }>} */
const VIEWS = {
  anatomy: ({ element }) => new Anatomy(element),
  board: ({ element }) => new Board(element),
  catalogue: ({ element, trigger }) => new Catalogue(element, trigger),
  drop: ({ element }) => new Drop(element),
  examples: ({ element }) => new Examples(element),
  race: mountRace,
};

/**
 * @param {string} name
 * @param {Widget} widget
 * @param {any} options
 */
export function mount(name, widget, options) {
  const view = VIEWS[name](widget, options);
  widget.watch("value", () => view.receive(widget.props.value));
  view.receive(widget.props.value);
}

/**
 * The race, with the reader's last runs and the presenting mode.
 * @param {Widget} widget
 * @param {any} figures
 */
function mountRace({ element, trigger }, figures) {
  const race = new Race(element, { chart: Chart, figures, trigger });
  new Past(/** @type {HTMLElement} */ (element.querySelector(".past")), race).last();
  race.root.addEventListener("anew", () => race.anew());
  gradio.watchRun((busy) => race.asked(busy));
  presenting(race);
  return race;
}

/** Start a new chat. */
export function anew() {
  document.querySelector(".race")?.dispatchEvent(new Event("anew"));
}

/** Open or close the rail's further settings. */
export function toggleMore() {
  document.querySelector("#rail")?.classList.toggle("open");
}

export { saveMade } from "./files.js";
export { openCompare } from "./gradio.js";
