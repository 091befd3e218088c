// The menu of examples beside the prompt, whose entries the server writes.

import * as gradio from "./gradio.js";

export class Examples {
  /** @param {HTMLElement} element */
  constructor(element) {
    this.list = /** @type {HTMLElement} */ (element.querySelector(".list"));
    const opener = /** @type {HTMLElement} */ (element.querySelector(".opener"));
    this.list.addEventListener("beforetoggle", () => this.beside(opener.getBoundingClientRect()));
    this.list.addEventListener("click", ({ target }) => {
      const entry = target instanceof Element ? target.closest("button") : null;
      if (!entry) return;
      gradio.setPrompt(entry.dataset.prompt ?? "");
      this.list.hidePopover();
    });
  }

  /** Below its button, or above it where there is more room. @param {DOMRect} button */
  beside({ left, top, bottom }) {
    const below = bottom < innerHeight / 2;
    const width = Math.min(560, innerWidth - 20);
    Object.assign(this.list.style, {
      left: `${Math.max(10, Math.min(left, innerWidth - width - 10))}px`,
      top: below ? `${bottom + 4}px` : "auto",
      bottom: below ? "auto" : `${innerHeight - top + 4}px`,
    });
  }

  /** @param {string} html */
  receive(html) {
    this.list.innerHTML = html; // escaped by the server
  }
}
