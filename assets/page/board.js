// Boards: texts, tables and charts that the server sends as data.

import { marked } from "./glossary.js";
import { Chart, table } from "./plot.js";
import { make } from "./rounds.js";

/** Show each part on a card. Charts keep their zoom as long as `run` is the same. @param {HTMLElement} place @param {Part[]} parts */
export function board(place, parts, run = "") {
  const charts = CHARTS.get(place) ?? [];
  CHARTS.set(place, charts);
  const cards = parts.map(({ title, remark, paragraphs = [], columns, rows = [], figure }, number) => {
    const card = make("section", "", `card ${figure ? "plot" : "texts"}`);
    if (title) card.append(marked(make("h2", title)));
    card.append(...paragraphs.map((text) => make("p", text)));
    if (columns) card.appendChild(make("div", "", "scroll")).append(table(columns, rows));
    if (figure) card.append((charts[number] ??= new Chart(make("div", "", "chart"))).show(figure, run));
    if (remark) card.append(make("p", remark, "remark"));
    return card;
  });
  place.replaceChildren(...cards);
}

/** The charts of each place, by the number of their part, which then show another figure. @type {WeakMap<HTMLElement, Chart[]>} */
const CHARTS = new WeakMap();
