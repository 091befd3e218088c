// The menu of files to show to others. The JSON is here already; of it the server makes all others.

class Share {
  // `record`: gives the JSON of the run that is shown; `trigger`: makes an event of the widget.
  constructor(menu, record, trigger) {
    this.menu = menu;
    menu.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button || !record()) return;
      menu.open = false;
      if (button.dataset.file === "json") save(record(), "application/json", "specdemo-comparison.json");
      else this.ask(button, record(), trigger);
    });
    menu.addEventListener("focusout", (event) => { if (!menu.contains(event.relatedTarget)) menu.open = false; });
    menu.addEventListener("keydown", (event) => { if (event.key === "Escape") menu.open = false; });
  }

  async ask(button, record, trigger) {
    if (this.menu.ariaBusy === "true") return;
    this.menu.ariaBusy = "true";
    trigger("download", { kind: button.dataset.file, record: await pack(record) });
  }

  // What the server made, as JSON; empty if it could not.
  static receive(text) {
    for (const menu of document.querySelectorAll(".share")) menu.ariaBusy = "false";
    if (!text) return;
    const { content, type, name } = JSON.parse(text);
    save(bytesOf(content), type, name);
  }
}
