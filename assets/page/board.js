// Views that show what the server sends: boards of texts and charts, and the catalogue's cards.

import { Chart } from "./chart.js";

/** A board: texts and charts, each in its place; a card with nothing to show is hidden by the style sheet. */
export class Board {
  /** @param {HTMLElement} element */
  constructor(element) {
    this.places = /** @type {NodeListOf<HTMLElement>} */ (element.querySelectorAll("[data-place]"));
    /** @type {Record<string, Chart>} */ this.charts = {};
  }

  /**
   * Apply an update. A place that it does not name stays as it is, or is emptied if the update covers the whole board.
   * @param {string} text
   */
  receive(text) {
    if (!text) return;
    const { html, charts, whole } = JSON.parse(text);
    for (const element of this.places) {
      const place = element.dataset.place ?? "";
      const content = html[place] ?? charts[place];
      if (content === undefined && !whole) continue;
      element.hidden = !content;
      if (!content) continue;
      if (place in html) element.innerHTML = content; // escaped by the server
      else (this.charts[place] ??= new Chart(element, { data: [], layout: {} })).show(content);
    }
  }
}

/** The catalogue, whose buttons become events of the widget. */
export class Catalogue {
  /**
   * @param {HTMLElement} element
   * @param {(event: string, data: object) => void} trigger
   */
  constructor(element, trigger) {
    this.list = /** @type {HTMLElement} */ (element.querySelector(".list"));
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
