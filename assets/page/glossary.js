// Explanations: the pointer, a tap or the Tab key shows an element's meaning as a tooltip, and Escape hides it. Elements
// name terms of `assets/glossary.json` in `data-term`, which have a dotted underline, or have a `data-meaning` of their own.

/** @type {Record<string, string> | undefined} */ let loaded;

/** The glossary's sentences by every name of a term; page, replays and reports contain them. */
const terms = () => (loaded ??= /** @type {Record<string, string>} */ (JSON.parse(document.querySelector("#terms")?.textContent ?? "{}")));

/** The meanings of terms, one per line; what is no term stays. @param {(string | false | null | undefined)[]} names */
export const explained = (...names) => names.map((name) => name && (terms()[name] ?? name)).filter(Boolean).join("\n");

/** Mark an element's text if it is a term, or has one among its words, such as "TTFT mean". @param {HTMLElement} element */
export function marked(element) {
  const text = element.textContent ?? "";
  const term = [text, ...text.split(" ")].find((name) => Object.hasOwn(terms(), name));
  if (term) Object.assign(element, { tabIndex: 0 }).dataset.term = term;
  return element;
}

/** Tooltips of elements with neither, such as tokens; built only when shown. @type {WeakMap<Element, () => string>} */
export const TIPS = new WeakMap();

/** The tooltip's text about a token and its round. @param {Element} token */
export const tipOf = (token) => [token, token.parentElement].map((element) => element && TIPS.get(element)?.()).filter(Boolean).join("\n");

/** The nearest element that has an explanation. @param {EventTarget | null} target @returns {HTMLElement | null} */
const around = (target) => (target instanceof Element ? target.closest("[data-term], [data-meaning], .text .token") : null);

/** @param {HTMLElement} element */
function textOf(element) {
  const { term, meaning } = element.dataset;
  return meaning ?? (term ? explained(...term.split(", ")) : tipOf(element));
}

const tip = Object.assign(document.createElement("div"), { id: "meaning", className: "tip", popover: "manual", role: "tooltip" });
/** @type {HTMLElement | null} */ let shown = null;

/** Show an element's meaning instead of the last one. @param {HTMLElement | null} element */
function explain(element) {
  if (shown === element) return;
  tip.remove();
  shown?.style.removeProperty("anchor-name");
  shown?.removeAttribute("aria-describedby");
  shown = element;
  tip.textContent = element && textOf(element);
  if (!element || !tip.textContent) return;
  element.style.setProperty("anchor-name", "--meaning");
  element.setAttribute("aria-describedby", tip.id);
  document.body.append(tip);
  tip.showPopover();
}

// an element reached by the keyboard stays explained wherever the pointer is
document.addEventListener("pointerover", ({ target }) => explain(around(target) ?? around(document.querySelector(":focus-visible"))));
for (const kind of ["focusin", "click"]) document.addEventListener(kind, ({ target }) => explain(around(target)));
document.addEventListener("keydown", ({ key }) => key === "Escape" && explain(null));
new MutationObserver(() => shown?.isConnected === false && explain(null)).observe(document, { childList: true, subtree: true });
