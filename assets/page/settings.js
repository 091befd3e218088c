// Settings that survive a reload and travel in a link: those that differ from the default, after the address's "#",
// where the server does not see them and length does not matter.

const STORE = "specdemo-settings";
const PATIENCE = 5000; // milliseconds

const settings = {
  // What the address says after "#", or after "?" if typed by hand.
  linked() {
    return new URLSearchParams(`${location.search.slice(1)}&${location.hash.slice(1)}`);
  },

  // Called with every change: `values` in the order of `names`.
  remember(names, defaults, values) {
    const changed = this.linked();
    names.forEach((name, index) => {
      if (values[index] === defaults[index] || values[index] === null) changed.delete(name);
      else changed.set(name, values[index]);
    });
    history.replaceState(null, "", changed.size ? `${location.pathname}#${changed}` : location.pathname);
    localStorage.setItem(STORE, changed.toString());
  },

  // Called when another pair is in use: `values` as JSON, the address carries what differs from `defaults`; with
  // another target, everything.
  rememberPair(defaults, values) {
    const chosen = JSON.parse(values);
    const names = Object.keys(defaults);
    const known = chosen.target === defaults.target ? defaults : {};
    this.remember(names, names.map((name) => known[name]), names.map((name) => chosen[name]));
  },

  // What to start with: the address if it says anything, else what was last used here.
  recall(names) {
    this.tellIfItTakesLong();
    this.tellOfTheQueue();
    const linked = this.linked();
    const source = names.some((name) => linked.has(name))
      ? linked
      : new URLSearchParams(localStorage.getItem(STORE) ?? "");
    return JSON.stringify(Object.fromEntries([...source].filter(([name]) => names.includes(name))));
  },

  // Run is off until the server has answered. A browser opens six connections to a host, and each run holds one.
  tellIfItTakesLong() {
    const run = document.querySelector("#run");
    const note = document.createElement("p");
    note.setAttribute("role", "status");
    note.className = "stalled";
    note.textContent = "Waiting for the server. If this page is open in six or more tabs of this browser, "
      + "it has no connection left: stop what runs in them, or close some.";
    const since = Date.now();
    const timer = setInterval(() => {
      const off = run.disabled && run.textContent.trim() === "Run"; // and not "Running …"
      if (off && Date.now() - since > PATIENCE) document.querySelector("#actions").after(note);
      if (off) return;
      note.remove();
      clearInterval(timer);
    }, 500);
  },

  // What Gradio says of the queue, such as "queue: 2/3 | 4.0/13.6s", in words.
  tellOfTheQueue() {
    const message = document.querySelector("#message");
    const tell = () => {
      const told = message.querySelector(".progress-text");
      const [, place, passed, whole] = told?.textContent.match(/queue: (\d+)\/\d* \|\s*([\d.]+)?(?:\/([\d.]+))?/) ?? [];
      if (!place) return told?.removeAttribute("data-words");
      const left = whole && Math.round(whole - passed);
      const turn = place === "1" ? "You are next" : `${place - 1} before you`;
      told.dataset.words = left > 0 ? `${turn}, about ${left} s` : turn;
    };
    new MutationObserver(tell).observe(message, { childList: true, characterData: true, subtree: true });
  },

  copyLink() {
    return this.copy(document.querySelector("#copy"), location.href);
  },

  copyCode(lines) {
    if (lines) this.copy(document.querySelector("#copy-code"), lines);
  },

  // The button says for a moment that it is done.
  async copy(button, text) {
    try {
      await navigator.clipboard.writeText(text); // browsers allow this on https and localhost only
    } catch {
      prompt("Copy this:", text);
      return;
    }
    button.classList.add("done");
    setTimeout(() => button.classList.remove("done"), 1500);
  },
};

// Gradio hangs up when the page is left and, until the next one is there, says that the connection was lost.
window.addEventListener("beforeunload", () => {
  document.body.classList.add("leaving");
  setTimeout(() => document.body.classList.remove("leaving"), PATIENCE); // the reader may have stayed
});

// Enter runs. Gradio would break the line, and submit on Shift+Enter.
document.addEventListener(
  "keydown",
  (event) => {
    if (event.key !== "Enter" || event.isComposing || !event.target.closest("#prompt")) return;
    event.stopPropagation();
    if (event.shiftKey) return;
    event.preventDefault();
    document.querySelector("#run:not([disabled])")?.click();
  },
  true,
);

// Gradio names each radio button differently, which makes every one a tab stop; of one name they are one, and the
// arrow keys choose. Gradio may redraw them at any time, so they are renamed where the focus arrives.
document.addEventListener("focusin", ({ target }) => {
  const group = target.matches("input[type=radio]") && target.closest("fieldset, .block");
  if (group) group.querySelectorAll("input[type=radio]").forEach((button) => { button.name = `${group.id}-choice`; });
});
