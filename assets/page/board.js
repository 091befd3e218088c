// A board: texts and charts, each in its place, replaced with each update. A place that an update does not name stays
// as it is, or is emptied if the update covers the whole board; a card with nothing to show is hidden.

class Board {
  constructor(element) {
    this.places = element.querySelectorAll("[data-place]");
    this.charts = {};
  }

  receive(text) {
    if (!text) return;
    const { html, charts, whole } = JSON.parse(text);
    for (const element of this.places) {
      const { place } = element.dataset;
      const content = html[place] ?? charts[place];
      if (content === undefined && !whole) continue;
      element.hidden = !content;
      if (!content) continue;
      if (place in html) element.innerHTML = content; // escaped by the server
      else this.draw(element, content);
    }
  }

  draw(element, figure) {
    const { place } = element.dataset;
    this.charts[place] ??= new Chart(element, { data: [], layout: {} });
    this.charts[place].show(figure);
  }
}
