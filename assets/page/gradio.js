// Everything that depends on how Gradio builds its page: its markup, its buttons' texts, its words about the queue.
// No other script does. `tests/ui/test_page_gradio.py` has a test for each, which says what a new release changed.

const PATIENCE = 5000; // milliseconds
const RUN = "#run";
const PROMPT = "#prompt textarea";
const TAB = "button[role=tab]";

/** @template {HTMLElement} E @param {string} selector @returns {E} */
const find = (selector) => /** @type {E} */ (document.querySelector(selector));

/** A button by the id that the page gave it. @param {string} id @returns {HTMLButtonElement} */
export function button(id) {
  return find(`#${id}`);
}

/** Click a button if it exists and is enabled. @param {string} id */
function press(id) {
  /** @type {HTMLButtonElement | null} */ (document.querySelector(`#${id}:not([disabled])`))?.click();
}

/** Set the prompt as if the text had been typed. @param {string} text */
export function setPrompt(text) {
  const area = /** @type {HTMLTextAreaElement} */ (find(PROMPT));
  area.value = text;
  area.dispatchEvent(new Event("input", { bubbles: true }));
}

/** Enter runs; Shift+Enter starts a new line. In Gradio it is the other way round. @param {KeyboardEvent} event */
function enter(event) {
  const area = event.target;
  if (event.key !== "Enter" || event.isComposing || !(area instanceof HTMLTextAreaElement) || !area.closest("#prompt")) return;
  event.stopPropagation();
  event.preventDefault();
  if (!event.shiftKey && button("run").disabled) return note("A run is in progress; Stop ends it.");
  if (!event.shiftKey) return press("run");
  area.setRangeText("\n", area.selectionStart, area.selectionEnd, "end");
  area.dispatchEvent(new Event("input", { bubbles: true }));
}

/** Say something beside the prompt for a while. @param {string} text */
function note(text) {
  const place = document.querySelector("#keys p");
  if (!place) return;
  const before = place.textContent === text ? null : place.textContent;
  place.textContent = text;
  if (before !== null) setTimeout(() => { place.textContent = before; }, PATIENCE);
}

/**
 * Gradio names each radio button differently, which makes every one a tab stop; with one name they are a single stop,
 * and the arrow keys choose. Gradio may redraw them at any time, so they are renamed when they get the focus.
 * @param {FocusEvent} event
 */
function oneStop({ target }) {
  if (!(target instanceof HTMLInputElement) || target.type !== "radio") return;
  const group = target.closest("fieldset, .block");
  for (const radio of group?.querySelectorAll("input[type=radio]") ?? []) {
    /** @type {HTMLInputElement} */ (radio).name = `${group?.id}-choice`;
  }
}

/** Install the handlers that must work as soon as the page is there. */
export function begin() {
  document.addEventListener("keydown", enter, true);
  document.addEventListener("focusin", oneStop);
}

/** Put Gradio's queue status, such as "queue: 2/3 | 4.0/13.6s", into words. */
export function explainQueue() {
  const message = find("#message");
  const explain = () => {
    const text = /** @type {HTMLElement | null} */ (message.querySelector(".progress-text"));
    const words = queueWords(text?.textContent ?? "");
    if (!text || text.dataset.words === words) return;
    if (words === undefined) delete text.dataset.words;
    else text.dataset.words = words;
  };
  new MutationObserver(explain).observe(message, { childList: true, characterData: true, subtree: true });
}

/** The queue in words; none for a visitor alone. @param {string} text */
function queueWords(text) {
  const [, place] = text.match(/queue: (\d+)\//) ?? [];
  if (!place) return undefined;
  return place === "1" ? "" : `${Number(place) - 1} before you`;
}

/** Open the first tab, Compare. */
export function openCompare() {
  find(TAB).click();
}

/** An element, once Gradio has built it. @param {string} selector @returns {Promise<HTMLElement>} */
function built(selector) {
  return new Promise((done) => {
    const look = () => {
      const element = /** @type {HTMLElement | null} */ (document.querySelector(selector));
      if (element) done(element);
      else requestAnimationFrame(look);
    };
    look();
  });
}

/** Report each start and end of a visitor's run, waiting included. @param {(busy: boolean) => void} changed */
export async function watchRun(changed) {
  const run = await built(RUN);
  let before = false;
  const look = () => {
    const busy = run.textContent?.trim() !== "Run";
    if (busy !== before) changed(busy);
    before = busy;
  };
  new MutationObserver(look).observe(run, { childList: true, characterData: true, subtree: true });
}
