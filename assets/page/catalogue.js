// The catalogue: cards from the server, whose buttons become events of the widget.

class Catalogue {
  constructor(element, trigger) {
    this.list = element.querySelector(".list");
    this.list.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-action]");
      if (button) trigger(button.dataset.action, { name: button.closest("[data-name]").dataset.name });
    });
  }

  receive(html) {
    if (html === this.html) return; // a button must not be replaced while it is being clicked
    this.html = html;
    this.list.innerHTML = html ?? ""; // escaped by the server
  }
}
