// The only script that depends on how Gradio builds its page: on its markup, and on its texts about the queue.
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
  if (!(area instanceof HTMLTextAreaElement && area.closest("#prompt"))) return;
  if (event.key !== "Enter" || event.isComposing) return;
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

/** Show a note below the prompt for a while. @param {string} text */
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
  const id = target.closest("fieldset, .block")?.id; // our own radio buttons, which have a common name, are in none
  if (!id) return;
  for (const radio of document.querySelectorAll(`#${id} input[type=radio]`)) radio.setAttribute("name", `${id}-choice`);
}

document.addEventListener("keydown", enter, true);
document.addEventListener("focusin", oneStop);

/** Buttons whose answer may be out of view, the element of their messages, and the button that stops the work. */
const ANSWERS = [
  ["#use, [data-action=select]", "#pair-message", "#cancel-load"],
  ["[data-action=download]", "#download", "#cancel-download"],
  ["#add-model", "#pair-message", ""],
  ["#copy-code", "#message", ""],
  ["#measure-start", "#measure-message", "#measure-stop"],
  ["#find", "#find-message", "#stop-find"],
];
const CHECK_MS = 200; // between two checks of a message, which shows seconds

/** Such a button shows progress, seconds and a Stop itself; its answer then appears below it, unless already in view. @param {MouseEvent} event */
function answer(event) {
  const button = /** @type {HTMLElement | null} */ (event.target instanceof Element && event.target.closest("button"));
  const [, messages, stop] = ANSWERS.find(([buttons]) => button?.matches(buttons)) ?? [];
  const place = messages && find(messages);
  if (!button || !place) return;
  const busy = () => (stop && find(stop)) || place.querySelector("[role=status]")?.textContent?.includes("…");
  for (const old of document.querySelectorAll(".answer")) old.remove();
  if (busy()) {
    const refusal = "Something else is in progress; stop it first.";
    button.insertAdjacentHTML("afterend", `<p class="answer" role="status">${refusal}</p>`);
    return event.stopImmediatePropagation();
  }
  const start = performance.now();
  let answered = false;
  const watched = new MutationObserver(() => { answered = true; });
  watched.observe(place, { childList: true, characterData: true, subtree: true });
  const timer = setInterval(() => {
    const ms = performance.now() - start;
    if (busy() || (!answered && ms < PATIENCE_MS)) {
      const text = place.textContent?.replace(/ \(\d+ s\)\s*$/, "").trim();
      if (ms > 2 * CHECK_MS) button.dataset.answer = `${(busy() && text) || "Working …"} ${Math.round(ms / 1000)} s`;
      if (stop && find(stop) && button.dataset.action && !button.nextElementSibling?.matches(".answer")) {
        button.insertAdjacentHTML("afterend", "<button type='button' class='answer'>Stop</button>");
        button.nextElementSibling?.addEventListener("click", () => find(stop)?.click());
      }
      return;
    }
    clearInterval(timer);
    watched.disconnect();
    delete button.dataset.answer;
    if (button.nextElementSibling?.matches(".answer")) button.nextElementSibling.remove();
    const { left, top } = place.getBoundingClientRect();
    if (!place.textContent?.trim() || place.contains(document.elementFromPoint(left + 2, top + 2))) return;
    const html = place.querySelector(".prose, .html-container")?.innerHTML ?? ""; // as the server has escaped it
    button.insertAdjacentHTML("afterend", `<div class="answer message">${html}</div>`);
  }, CHECK_MS);
}
document.addEventListener("click", answer, true);
document.addEventListener("click", ({ target }) => { // a message's next step, wherever it is shown
  const next = target instanceof Element && target.closest("[data-press]")?.getAttribute("data-press");
  if (next) find(next)?.click();
});

/** Reword Gradio's queue status, such as "queue: 2/3 | 4.0/13.6s"; empty for the first in the queue. */
export function explainQueue() {
  const message = /** @type {HTMLElement} */ (find("#message"));
  new MutationObserver(() => {
    const text = /** @type {HTMLElement | null} */ (message.querySelector(".progress-text"));
    const [, place] = text?.textContent?.match(/queue: (\d+)\//) ?? [];
    const words = place > "1" ? `${Number(place) - 1} before you` : "";
    if (text && text.dataset.words !== words) text.dataset.words = words;
    const said = message.querySelector("[role=status]")?.textContent; // such as that another visitor's race runs
    for (const phase of said ? document.querySelectorAll(".race.requested .phase") : []) {
      phase.textContent = `${said} ${words}`.trim();
    }
  }).observe(message, { childList: true, characterData: true, subtree: true });
}

/** The terms in Gradio's labels, which take no attributes of ours: each by the place of its label. */
const TERMS = {
  "#engine label:has([value=genai])": "GenAI",
  "#engine label:has([value=traced])": "traced",
  "#drafter [data-testid=block-info]": "drafter",
  "#policy [data-testid=block-info]": "lookahead policy",
  "#num_assistant_tokens [data-testid=block-info]": "lookahead",
};

/** Mark them now and whenever Gradio draws a control anew. */
export function explainLabels() {
  const rail = /** @type {HTMLElement} */ (find("#rail"));
  const mark = () => {
    for (const [place, term] of Object.entries(TERMS)) {
      const label = find(place);
      if (!label) continue;
      label.dataset.term = term;
      if (label.matches("label")) continue; // a radio button has the focus itself
      label.tabIndex = 0;
      label.onclick = (event) => event.preventDefault(); // else its slider takes the focus, which ends the explanation
    }
  };
  new MutationObserver(mark).observe(rail, { childList: true, subtree: true });
  mark();
}

/** A tab's name, as in addresses. @param {Element | null | undefined} tab */
const nameOf = (tab) => tab?.textContent?.trim().toLowerCase() ?? "";

/** Open a tab at its top. @param {string} name */
export function openTab(name) {
  const tabs = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[role=tab]"));
  [...tabs].find((tab) => nameOf(tab) === name)?.click();
  scrollTo({ top: 0 });
}

/** Report each tab that opens, however it was opened. @param {(name: string) => void} report */
export function watchTabs(report) {
  new MutationObserver(() => report(nameOf(find("[role=tab][aria-selected=true]"))))
    .observe(/** @type {HTMLElement} */ (find(".tab-container")?.closest(".tabs")), { attributeFilter: ["aria-selected"], subtree: true });
}
