// One side's text: rounds are appended as they arrive; tokens show details on hover, focus and arrow keys.

class Pane {
  constructor(element, tip) {
    this.text = element.querySelector(".text");
    this.facts = element.querySelectorAll("[data-fact]");
    this.tip = tip;
    this.following = true; // the end of the text, unless the reader scrolls up
    this.text.addEventListener("wheel", () => this.follow(), { passive: true });
    this.text.addEventListener("touchmove", () => this.follow(), { passive: true });
    this.text.addEventListener("pointerover", (event) => this.explain(event.target.closest(".token")));
    this.text.addEventListener("pointerleave", () => this.hide());
    this.text.addEventListener("focusin", (event) => this.explain(event.target.closest(".token")));
    this.text.addEventListener("focusout", () => this.hide());
    this.text.addEventListener("keydown", (event) => this.move(event));
  }

  reset(prompt) {
    this.hide();
    this.following = true;
    this.text.replaceChildren();
    if (prompt) {
      const given = document.createElement("span");
      given.className = "prompt";
      given.textContent = prompt;
      this.text.append(given);
    }
    this.show({ rate: null, ms: null, tokens: null });
  }

  follow() {
    const { scrollTop, clientHeight, scrollHeight } = this.text;
    this.following = scrollTop + clientHeight >= scrollHeight - 40;
  }

  append(rounds) {
    if (!rounds.length) return;
    for (const round of rounds) (round.thinking ? this.thoughts() : this.text).insertAdjacentHTML("beforeend", round.html);
    for (const { firstChild, children } of this.text.querySelectorAll(".thinking")) {
      firstChild.textContent = `Thinking, ${children.length - 1} rounds`;
    }
    if (this.following) this.text.scrollTop = 1e9;
    this.show(rounds.at(-1));
  }

  // What the model thinks before it answers, folded away.
  thoughts() {
    if (!this.text.lastElementChild?.matches(".thinking")) {
      this.text.insertAdjacentHTML("beforeend", "<details class='thinking'><summary></summary></details>");
    }
    return this.text.lastElementChild;
  }

  show(round) {
    for (const fact of this.facts) fact.textContent = Pane.format(fact.dataset.fact, round[fact.dataset.fact]);
  }

  static format(name, value) {
    if (value === null || value === undefined) return "–";
    if (name === "tokens") return String(value);
    return value >= 100 ? value.toFixed(0) : value.toFixed(1);
  }

  mark(index) {
    const token = index === null ? null : this.text.querySelector(`[data-index="${index}"]`);
    token?.classList.add("diverges");
    token?.closest(".thinking")?.setAttribute("open", "");
    if (token) token.dataset.tip += "\nhere the two outputs part";
    this.text.scrollTop = token ? token.offsetTop - this.text.offsetTop - 40 : 0; // both panes alike
  }

  explain(token) {
    if (!token) return this.hide();
    const { tip } = this;
    const box = token.getClientRects()[0];
    if (!box) return;
    tip.textContent = `${token.dataset.tip}\n${token.parentElement.dataset.tip}`;
    tip.hidden = false;
    const frame = tip.offsetParent.getBoundingClientRect();
    const left = Math.min(box.left - frame.left, frame.width - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(left, 8)}px`;
    tip.style.top = `${box.bottom - frame.top + 6}px`;
    this.text.querySelector(".lit")?.classList.remove("lit");
    token.parentElement.classList.add("lit");
    token.setAttribute("aria-describedby", tip.id);
  }

  hide() {
    this.tip.hidden = true;
    this.text.querySelector(".lit")?.classList.remove("lit");
  }

  // The text is one stop for the Tab key; arrow keys walk through its tokens.
  move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") this.hide();
    if (!step) return;
    const tokens = [...this.text.querySelectorAll(".token")].filter((token) => token.offsetParent);
    const at = tokens.indexOf(document.activeElement);
    const next = tokens[Math.min(Math.max(at + step, 0), tokens.length - 1)];
    if (!next) return;
    next.tabIndex = -1;
    next.focus();
    event.preventDefault();
  }
}
