// Boards: texts, tables and charts that the server sends as data.

import { Chart, table } from "./plot.js";
import { make } from "./rounds.js";

/**
 * A part of a board: paragraphs, a table, or a chart, with its title above and a remark on how to read it below.
 * @typedef {{ title?: string, remark?: string, paragraphs?: string[], columns?: string[], rows?: string[][], figure?: import("./plot.js").Figure }} Part
 */

/** Show each part on a card. Charts keep their zoom as long as `run` is the same. @param {HTMLElement} place @param {Part[]} parts */
export function board(place, parts, run = "") {
  const cards = parts.map(({ title, remark, paragraphs = [], columns, rows = [], figure }, number) => {
    const card = make("section", "", `card ${figure ? "plot" : "texts"}`);
    if (title) card.append(make("h2", title));
    card.append(...paragraphs.map((text) => make("p", text)));
    if (columns) card.appendChild(make("div", "", "scroll")).append(table(columns, rows));
    if (figure) card.append(chartIn(place, number, figure, run));
    if (remark) card.append(make("p", remark, "remark"));
    return card;
  });
  place.replaceChildren(...cards);
}

/** The charts of each place by the number of their part. @type {WeakMap<HTMLElement, Map<number, Chart>>} */
const CHARTS = new WeakMap();

/** A chart that was shown there before stays, with another figure. @param {HTMLElement} place @param {number} number @param {import("./plot.js").Figure} figure @param {string} run */
function chartIn(place, number, figure, run) {
  const charts = CHARTS.get(place) ?? new Map();
  CHARTS.set(place, charts);
  const chart = charts.get(number) ?? new Chart(make("div", "", "chart"));
  charts.set(number, chart);
  chart.show(figure, run);
  return chart.element;
}
