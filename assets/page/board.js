// A board: texts and charts that are shown anew with each update, each in its place; what an update lacks stays.

class Board {
  constructor(element) {
    this.find = (selector) => element.querySelector(selector);
    this.root = this.find(".board");
    this.charts = {};
    // Charts drawn in a hidden tab have no width until it is shown.
    this.shown = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) if (isIntersecting) this.charts[target.dataset.place]?.resize();
    });
  }

  receive(text) {
    if (!text) return;
    const { html, charts } = JSON.parse(text);
    for (const [place, content] of Object.entries(html)) {
      this.find(`.${place}`).innerHTML = content; // escaped by the server
      this.find(`.${place}`).closest(".card").hidden = !content;
    }
    for (const [place, figure] of Object.entries(charts)) {
      const element = this.find(`.chart.${place}`);
      element.closest(".card").hidden = false;
      if (!this.charts[place]) {
        this.charts[place] = new Chart(element, { data: [], layout: {} });
        element.dataset.place = place;
        this.shown.observe(element);
      }
      this.charts[place].show(figure);
    }
  }
}
