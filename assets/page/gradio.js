// Everything that leans on how Gradio builds its page: its markup, the texts of its buttons, what it says of the queue.
// Nothing else does. `tests/…/test_page_gradio.py` has a test for each, which says what a new release has changed.

const PATIENCE = 5000; // milliseconds
const RUN = "#run";
const PROMPT = "#prompt textarea";
const TAB = "button[role=tab]";

/** @template {Element} E @param {string} selector @returns {E} */
const find = (selector) => /** @type {E} */ (document.querySelector(selector));

/** A button by the id that the page gave it. @param {string} id @returns {HTMLButtonElement} */
export function button(id) {
  return find(`#${id}`);
}

/** Click a button if it is there and may be clicked. @param {string} id */
export function press(id) {
  /** @type {HTMLButtonElement | null} */ (document.querySelector(`#${id}:not([disabled])`))?.click();
}

/** The text of the prompt. */
export function prompt() {
  return /** @type {HTMLTextAreaElement} */ (find(PROMPT)).value;
}

/** As if it had been typed. @param {string} text */
export function setPrompt(text) {
  type(PROMPT, text);
}

/** Add a model as if its path had been typed. @param {string} path */
export function addModel(path) {
  type("#model-path :is(textarea, input)", path);
  setTimeout(() => press("add-model")); // once Gradio has the path
}

/** @param {string} selector @param {string} text */
function type(selector, text) {
  const area = /** @type {HTMLTextAreaElement} */ (find(selector));
  area.value = text;
  area.dispatchEvent(new Event("input", { bubbles: true }));
}

/** Enter runs; Shift+Enter begins a new line. Gradio has it the other way round. @param {KeyboardEvent} event */
function enter(event) {
  const area = event.target;
  if (event.key !== "Enter" || event.isComposing || !(area instanceof HTMLTextAreaElement) || !area.closest("#prompt")) return;
  event.stopPropagation();
  event.preventDefault();
  if (!event.shiftKey) return press("run");
  area.setRangeText("\n", area.selectionStart, area.selectionEnd, "end");
  area.dispatchEvent(new Event("input", { bubbles: true }));
}

/**
 * Gradio names each radio button differently, which makes every one a tab stop; of one name they are one, and the arrow
 * keys choose. Gradio may redraw them at any time, so they are renamed where the focus arrives.
 * @param {FocusEvent} event
 */
function oneStop({ target }) {
  if (!(target instanceof HTMLInputElement) || target.type !== "radio") return;
  const group = target.closest("fieldset, .block");
  for (const radio of group?.querySelectorAll("input[type=radio]") ?? []) {
    /** @type {HTMLInputElement} */ (radio).name = `${group?.id}-choice`;
  }
}

/** Gradio hangs up when the page is left and, until the next one is there, says that the connection was lost. */
function leaving() {
  document.body.classList.add("leaving");
  setTimeout(() => document.body.classList.remove("leaving"), PATIENCE); // the reader may have stayed
}

/** What must hold from the first moment on. */
export function begin() {
  document.addEventListener("keydown", enter, true);
  document.addEventListener("focusin", oneStop);
  addEventListener("beforeunload", leaving);
}

/** Say why Run is still off, and what the queue is doing, in words. */
export function explainWaiting() {
  explainStart();
  explainQueue();
}

/** Run is off until the server has answered. A browser opens six connections to a host, and each run holds one. */
function explainStart() {
  const run = /** @type {HTMLButtonElement} */ (find(RUN));
  const note = document.createElement("p");
  note.setAttribute("role", "status");
  note.className = "stalled";
  note.textContent = "Waiting for the server. If this page is open in six or more tabs of this browser, "
    + "it has no connection left: stop what runs in them, or close some.";
  const off = () => run.disabled && run.textContent?.trim() === "Run"; // and not "Running …"
  const timer = setTimeout(() => off() && find("#actions").after(note), PATIENCE);
  const watch = new MutationObserver(() => {
    if (off()) return;
    clearTimeout(timer);
    note.remove();
    watch.disconnect();
  });
  watch.observe(run, { attributes: true, childList: true, characterData: true, subtree: true });
}

/** What Gradio says of the queue, such as "queue: 2/3 | 4.0/13.6s", in words. */
function explainQueue() {
  const message = find("#message");
  const explain = () => {
    const text = /** @type {HTMLElement | null} */ (message.querySelector(".progress-text"));
    const words = queueWords(text?.textContent ?? "");
    if (!text || text.dataset.words === words) return;
    if (words) text.dataset.words = words;
    else delete text.dataset.words;
  };
  new MutationObserver(explain).observe(message, { childList: true, characterData: true, subtree: true });
}

/** @param {string} text */
export function queueWords(text) {
  const [, place, passed, whole] = text.match(/queue: (\d+)\/\d* \|\s*([\d.]+)?(?:\/([\d.]+))?/) ?? [];
  if (!place) return undefined;
  const left = whole && passed ? Math.round(Number(whole) - Number(passed)) : 0;
  const turn = place === "1" ? "You are next" : `${Number(place) - 1} before you`;
  return left > 0 ? `${turn}, about ${left} s` : turn;
}

/** Whether a run is asked for and its end not there yet, each time that changes. @param {(busy: boolean) => void} changed */
export function watchRun(changed) {
  const run = find(RUN);
  let before = false;
  const look = () => {
    const busy = run.textContent?.trim() !== "Run";
    if (busy !== before) changed(busy);
    before = busy;
  };
  new MutationObserver(look).observe(run, { childList: true, characterData: true, subtree: true });
}

/** The page's tabs, by their names in lower case; the first one's is empty. */
export class Tabs {
  /** @param {(name: string) => void} onOpen */
  constructor(onOpen) {
    this.last = "";
    this.last = this.selected();
    const bar = find(".tabs");
    new MutationObserver(() => {
      const name = this.selected();
      if (name === this.last) return;
      this.last = name;
      onOpen(name);
    }).observe(bar, { attributes: true, attributeFilter: ["aria-selected"], subtree: true });
  }

  /** @returns {HTMLElement[]} */
  all() {
    return [...document.querySelectorAll(`.tabs > .tab-wrapper .tab-container:not(.visually-hidden) ${TAB}`)].filter((tab) => tab instanceof HTMLElement);
  }

  /** @param {HTMLElement} tab @param {number} index */
  name(tab, index) {
    return index === 0 ? "" : (tab.textContent ?? "").trim().toLowerCase();
  }

  /** @returns {string} */
  selected() {
    const all = this.all();
    const at = all.findIndex((tab) => tab.ariaSelected === "true");
    return at < 0 ? this.last : this.name(all[at], at);
  }

  /** @param {string} name */
  open(name) {
    const all = this.all();
    const tab = all.find((each, index) => this.name(each, index) === name);
    if (tab) return tab.click();
    // a narrow window has put it into the menu of further tabs
    const further = [...document.querySelectorAll(".overflow-dropdown button")];
    const entry = further.find((each) => (each.textContent ?? "").trim().toLowerCase() === name);
    if (entry instanceof HTMLElement) entry.click();
  }
}
