// The menu of examples beside the prompt, and a mode for presenting to an audience.

import * as gradio from "./gradio.js";

/** The menu of examples, whose entries the server writes. */
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

/** Set the prompt to the example after the current one, and announce it, since it is out of view. */
function nextExample() {
  const prompts = [...document.querySelectorAll(".examples [data-prompt]")].map((entry) => /** @type {HTMLElement} */ (entry).dataset.prompt ?? "");
  if (prompts.length) gradio.setPrompt(prompts[(prompts.indexOf(gradio.prompt()) + 1) % prompts.length]);
  sayPrompt();
}

/** Beside the presenter's keys: what R will run. */
function sayPrompt() {
  const place = document.querySelector(".presenter-keys .prompt");
  if (place) place.textContent = gradio.prompt();
}

const ADDRESSES = ["present", "presenter"];

/**
 * Show panes, conclusion and charts alone, larger, with a key for everything: `p`, or `#present` in the address.
 * @param {import("./race.js").Race} race
 */
export function presenting(race) {
  const at = () => document.body.classList.contains("presenting");
  const set = (/** @type {boolean} */ on) => {
    document.body.classList.toggle("presenting", on);
    if (on) {
      race.intro.show(false);
      sayPrompt();
    }
    scrollTo({ top: 0 });
  };
  /** @type {Record<string, () => void>} */
  const keys = {
    p: () => set(!at()),
    Escape: () => set(false),
    r: () => gradio.press("run"),
    w: () => race.toggle(),
    n: nextExample,
  };
  document.addEventListener("keydown", (event) => {
    const { key, target } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (target instanceof Element && target.closest("input, textarea, select, [contenteditable]")) return;
    const action = keys[key];
    if (!action || (key !== "p" && !at())) return;
    event.preventDefault();
    action();
  });
  document.querySelector(".leave-presenting")?.addEventListener("click", () => set(false));
  const named = () => set(at() || ADDRESSES.some((name) => new URLSearchParams(location.hash.slice(1)).has(name)));
  addEventListener("hashchange", named);
  named();
}
