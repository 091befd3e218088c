// Everything that depends on how Gradio builds its page: its markup, and its words about the queue. No other script does.
// `tests/ui/test_page_gradio.py` has a test for each, which says what a new release changed.
// Loaded first: its handlers must work as soon as the page is there.

const PATIENCE_MS = 5000; // for which a note stays

/** @template {HTMLElement} E @param {string} selector @returns {E | null} */
const find = (selector) => document.querySelector(selector);

/** Set the prompt as if the text had been typed. @param {string} text */
export function setPrompt(text) {
  const area = /** @type {HTMLTextAreaElement} */ (find("#prompt textarea"));
  area.value = text;
  area.dispatchEvent(new Event("input", { bubbles: true }));
}

/** Enter runs; Shift+Enter starts a new line. In Gradio it is the other way round. @param {KeyboardEvent} event */
function enter(event) {
  const area = event.target;
  if (event.key !== "Enter" || event.isComposing || !(area instanceof HTMLTextAreaElement) || !area.closest("#prompt")) return;
  event.stopPropagation();
  event.preventDefault();
  if (event.shiftKey) {
    area.setRangeText("\n", area.selectionStart, area.selectionEnd, "end");
    area.dispatchEvent(new Event("input", { bubbles: true }));
    return;
  }
  if (find("#run:disabled")) note(find("#stop") ? "A run is in progress; Stop ends it." : "Not ready yet.");
  else find("#run")?.click();
}

/** Say something beside the prompt for a while. @param {string} text */
export function note(text, ms = PATIENCE_MS) {
  const place = find("#keys p");
  if (!place) return;
  place.dataset.usual ??= place.textContent ?? "";
  place.textContent = text;
  setTimeout(() => { if (place.textContent === text) place.textContent = place.dataset.usual ?? ""; }, ms);
}

/**
 * Gradio names each radio button differently, which makes every one a tab stop; with one name they are a single stop,
 * and the arrow keys choose. Gradio may redraw them at any time, so they are renamed when they get the focus.
 * @param {FocusEvent} event
 */
function oneStop({ target }) {
  if (!(target instanceof HTMLInputElement) || target.type !== "radio") return;
  const group = target.closest("fieldset, .block");
  for (const radio of /** @type {NodeListOf<HTMLInputElement>} */ (group?.querySelectorAll("input[type=radio]") ?? [])) radio.name = `${group?.id}-choice`;
}

document.addEventListener("keydown", enter, true);
document.addEventListener("focusin", oneStop);

// A page that is left cuts its own connections, which Gradio reports as errors before this listener hears of it.
let leaving = false;
addEventListener("beforeunload", () => { leaving = true; setTimeout(() => { leaving = false; }, PATIENCE_MS); });
const { error } = console;
console.error = (...said) => {
  if (/errored out|AbortError/.test(said.join(" "))) setTimeout(() => leaving || error(...said));
  else error(...said);
};

/** Put Gradio's queue status, such as "queue: 2/3 | 4.0/13.6s", into words; none for a visitor alone. */
export function explainQueue() {
  const message = /** @type {HTMLElement} */ (find("#message"));
  new MutationObserver(() => {
    const text = /** @type {HTMLElement | null} */ (message.querySelector(".progress-text"));
    const [, place] = text?.textContent?.match(/queue: (\d+)\//) ?? [];
    const words = place > "1" ? `${Number(place) - 1} before you` : "";
    if (text && text.dataset.words !== words) text.dataset.words = words;
  }).observe(message, { childList: true, characterData: true, subtree: true });
}

/** Open the first tab, Compare. */
export function openCompare() {
  find("button[role=tab]")?.click();
}
