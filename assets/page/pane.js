// One side's text: rounds are appended as they arrive; tokens show details on hover, focus and arrow keys.

class Pane {
  constructor(element, tip) {
    this.text = element.querySelector(".text");
    this.facts = element.querySelectorAll("[data-fact]");
    this.tip = tip;
    this.following = true; // the end of the text, unless the reader scrolls up
    element.addEventListener("click", ({ target }) => {
      if (target.matches(".copy")) settings.copy(target, this.copied(target));
    });
    new ResizeObserver(() => this.scroll()).observe(this.text);
    this.text.addEventListener("wheel", () => this.follow(), { passive: true });
    this.text.addEventListener("touchmove", () => this.follow(), { passive: true });
    this.text.addEventListener("pointerover", (event) => this.explain(event.target.closest(".token")));
    this.text.addEventListener("pointerleave", () => this.hide());
    this.text.addEventListener("focusin", (event) => this.explain(event.target.closest(".token")));
    this.text.addEventListener("focusout", () => this.hide());
    this.text.addEventListener("keydown", (event) => this.move(event));
  }

  // The earlier turns of a chat, then the prompt.
  reset(prompt, chat, history = "") {
    this.hide();
    this.following = true;
    this.text.innerHTML = history; // escaped by the server
    if (prompt) {
      const given = document.createElement("span");
      given.className = chat ? "prompt said" : "prompt";
      given.textContent = prompt;
      this.text.append(given);
    }
    this.show({}, 0);
    this.scroll();
  }

  // What a Copy button stands for: a block of code in a rendered turn, one in this answer, or the answer.
  copied(button) {
    const { block } = button.dataset;
    if (button.nextElementSibling?.matches("pre")) return button.nextElementSibling.textContent;
    const pieces = block ? this.text.querySelectorAll(`.md-block[data-block="${block}"]`) : this.text.querySelectorAll(":scope > .round > [data-index]");
    return [...pieces].map((piece) => piece.textContent).join("").trim();
  }

  // To the end, for a reader who is there.
  scroll() {
    if (this.following) this.text.scrollTop = 1e9;
  }

  follow() {
    const { scrollTop, clientHeight, scrollHeight } = this.text;
    this.following = scrollTop + clientHeight >= scrollHeight - 40;
  }

  // What became visible, `ms` into the run.
  append(rounds, ms) {
    if (!rounds.length) return this.clock(ms);
    for (let from = 0, to = 0; from < rounds.length; from = to) {
      const { thinking } = rounds[from];
      while (to < rounds.length && rounds[to].thinking === thinking) to += 1;
      const place = thinking ? this.thoughts() : this.text;
      place.insertAdjacentHTML("beforeend", rounds.slice(from, to).map((round) => round.html).join(""));
      if (thinking) place.firstChild.textContent = `Thinking, ${place.children.length - 1} rounds`;
    }
    this.scroll();
    this.show(rounds.at(-1), ms);
  }

  // What the model thinks before it answers, folded away.
  thoughts() {
    if (!this.text.lastElementChild?.matches(".thinking")) {
      this.text.insertAdjacentHTML("beforeend", "<details class='thinking'><summary></summary></details>");
    }
    return this.text.lastElementChild;
  }

  show(round, ms) {
    for (const fact of this.facts) fact.textContent = Pane.format(fact.dataset.fact, round[fact.dataset.fact]);
    this.clock(round.ms === undefined ? null : ms);
  }

  clock(ms) {
    for (const fact of this.facts) {
      if (fact.dataset.fact !== "ms") continue;
      fact.textContent = ms === null ? "–" : Pane.time(ms);
      fact.dataset.value = ms ?? 0;
    }
  }

  static format(name, value) {
    if (value === null || value === undefined) return "–";
    if (name === "alpha") return `${Math.round(100 * value)} %`;
    return value >= 100 ? value.toFixed(0) : value.toFixed(1);
  }

  static time(ms) {
    const seconds = ms / 1000;
    if (seconds < 1) return `${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
    if (seconds < 100) return `${seconds.toFixed(seconds < 10 ? 2 : seconds < 60 ? 1 : 0)} s`;
    const whole = Math.round(seconds);
    return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  }

  mark(index) {
    const token = index === null ? null : this.text.querySelector(`[data-index="${index}"]`);
    token?.classList.add("diverges");
    token?.closest(".thinking")?.setAttribute("open", "");
    if (!token) return;
    this.following = false;
    token.dataset.tip += "\nhere the two outputs part";
    this.text.scrollTop = token.offsetTop - this.text.offsetTop - 40; // both panes alike
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
