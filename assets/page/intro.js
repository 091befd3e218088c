// How speculative decoding works, in three small drawings: shown until dismissed, and again with "How it works".

import { Stored } from "./storage.js";

/** @type {Stored<boolean>} */
const DISMISSED = new Stored("specdemo-intro-dismissed", (value) => (value === true || value === false ? value : null), false);

export class Intro {
  /** @param {HTMLElement} root the race view */
  constructor(root) {
    this.element = /** @type {HTMLElement} */ (root.querySelector(".intro"));
    this.button = /** @type {HTMLElement} */ (root.querySelector(".how"));
    this.button.addEventListener("click", () => this.show(Boolean(this.element.hidden)));
    this.element.querySelector(".dismiss")?.addEventListener("click", () => this.dismiss());
    this.element.addEventListener("keydown", ({ key }) => {
      if (key === "Escape") this.dismiss();
    });
    this.welcome();
  }

  /** Show it unless the reader has dismissed it. */
  welcome() {
    this.show(!DISMISSED.read());
  }

  /** @param {boolean} shown */
  show(shown) {
    this.element.hidden = !shown;
    this.button.setAttribute("aria-expanded", String(shown));
  }

  dismiss() {
    DISMISSED.write(true);
    this.show(false);
    this.button.focus({ preventScroll: true });
  }
}
