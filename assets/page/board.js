// Boards: texts, tables and charts that the server sends as data, for the tabs that measure; and the catalogue's cards.

import { Chart } from "./chart.js";

/**
 * A part of a board: paragraphs, a table, or a chart, with its title above and a remark on how to read it below.
 * @typedef {{ title?: string, remark?: string, paragraphs?: string[], columns?: string[], rows?: string[][], figure?: import("./chart.js").Figure }} Part
 */

/** @param {string} tag @param {string} textContent @param {string} className */
function element(tag, textContent = "", className = "") {
  return Object.assign(document.createElement(tag), { textContent, className });
}

/** Show parts in a place, each on a card of its own. @param {HTMLElement} place @param {Part[]} parts */
export function board(place, parts) {
  const cards = parts.map(({ title, remark, paragraphs = [], columns, rows = [], figure }, number) => {
    const card = element("section", "", `card ${figure ? "plot" : "texts"}`);
    if (title) card.append(element("h2", title));
    card.append(...paragraphs.map((text) => element("p", text)));
    if (columns) card.append(table(columns, rows));
    if (figure) card.append(chartIn(place, number, figure));
    if (remark) card.append(element("p", remark, "remark"));
    return card;
  });
  place.replaceChildren(...cards);
}

/** The charts of each place by the number of their part. @type {WeakMap<HTMLElement, Map<number, Chart>>} */
const CHARTS = new WeakMap();

/** A chart that was shown there before stays, with another figure. @param {HTMLElement} place @param {number} number @param {import("./chart.js").Figure} figure */
function chartIn(place, number, figure) {
  const charts = CHARTS.get(place) ?? new Map();
  CHARTS.set(place, charts);
  const chart = charts.get(number) ?? new Chart(element("div", "", "chart"));
  charts.set(number, chart);
  chart.show(figure);
  return chart.element;
}

/** @param {string[]} columns @param {string[][]} rows */
function table(columns, rows) {
  const scroll = element("div", "", "scroll");
  const [made, head, body] = ["table", "thead", "tbody"].map((tag) => element(tag));
  head.append(element("tr"));
  head.firstElementChild?.append(...columns.map((text) => element("th", text)));
  body.append(...rows.map((row) => {
    const line = element("tr");
    line.append(...row.map((text) => element("td", text)));
    return line;
  }));
  made.append(head, body);
  scroll.append(made);
  return scroll;
}

/** A board that follows the values of its widget: a JSON array of parts. */
export class Board {
  /** @param {HTMLElement} place */
  constructor(place) {
    this.place = /** @type {HTMLElement} */ (place.querySelector(".board"));
  }

  /** @param {string} text */
  receive(text) {
    board(this.place, JSON.parse(text || "[]"));
  }
}

/** The catalogue, whose buttons become events of the widget. */
export class Catalogue {
  /** @param {HTMLElement} place @param {(event: string, data: object) => void} trigger */
  constructor(place, trigger) {
    this.list = /** @type {HTMLElement} */ (place.querySelector(".list"));
    this.html = "";
    this.list.addEventListener("click", ({ target }) => {
      const button = target instanceof Element && target.closest("button[data-action]");
      if (!(button instanceof HTMLElement) || !button.dataset.action) return;
      const entry = /** @type {HTMLElement} */ (button.closest("[data-name]"));
      trigger(button.dataset.action, { name: entry.dataset.name });
    });
  }

  /** @param {string} html */
  receive(html) {
    if (html === this.html) return; // a button must not be replaced while it is being clicked
    this.html = html;
    this.list.innerHTML = html ?? ""; // escaped by the server
  }
}
