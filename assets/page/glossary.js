// Explanations of the field's terms in our views, in Gradio's labels, and in replays. A term has a dotted underline;
// the pointer, a tap or the Tab key shows its meaning, and Escape hides it.

/** A term, its full name and its meaning. @type {[RegExp, string, string][]} */
const TERMS = [
  [/^\s*accepted\s*$/, "Accepted", "a proposal (draft token) that the target would have written itself"],
  [/^\s*rejected\s*$/, "Rejected", "the first proposal of a round that the target would not have written"],
  [/copied/i, "Copied", "a proposal found after the same words earlier in prompt, chat or answer; all others are the draft's"],
  [/discarded/i, "Discarded", "a proposal after a rejected one; the target never judges it"],
  [/correction( or bonus)?( token)?/, "Correction token", "what the target writes in place of a rejected proposal"],
  [/(correction or )?bonus( token)?/, "Bonus token", "what the target adds after a round whose proposals were all accepted"],
  [/replayed/, "Replayed", "this engine does not report its proposals, so the draft computed them again after the race"],
  [/^\s*speedup\s*$/, "Speedup", "how many times as fast speculative decoding is"],
  [/(acceptance rate|running) α|α|acceptance rate/i, "Acceptance rate α", "share of all proposals so far that the target accepted"],
  [/mean acceptance length τ|τ|tokens a round/i, "Mean acceptance length τ", "tokens that a round adds to the text"],
  [/(verify cost )?v\(\d+\)|verify cost/, "Verify cost v(n)", "what checking n tokens in one pass costs, as a multiple of writing one token plainly"],
  [/draft cost( c)?|\bcost c\b/, "Draft cost c", "what one proposal costs, as a multiple of writing one token plainly"],
  [/TPOT/, "TPOT, time per output token", "how long each token takes once writing has begun"],
  [/TTFT/, "TTFT, time to first token", "how long the answer takes to begin"],
  [/prefill/i, "Prefill", "reading the prompt, before the first token"],
  [/GenAI/, "GenAI", "OpenVINO's library for applications, unchanged; it does not report which proposals it rejects"],
  [/EAGLE-3( head)?/, "EAGLE-3 head", "a small draft that reads the target's hidden states instead of the text alone"],
  [/traced/i, "Traced", "specdemo's own decoding loop on OpenVINO; it records every proposal, with probabilities"],
  [/policy/i, "Lookahead policy", "the rule that decides when the draft stops proposing and the target checks"],
  [/^\s*lookahead\s*$/i, "Lookahead", "proposals per round (num_assistant_tokens); the best number depends on the machine and how often the draft is right"],
  [/^\s*drafter\s*$/i, "Drafter", "what makes the proposals: a small model, or a search for what followed the same words before"],
  [/ [↵␣→∅]+$/m, "Marks", "↵ a line break, ␣ a space, → a tab, ∅ no text: a special token, or a part of a character"],
];
/** Where terms are marked; answers and prompts stay as they are. */
const PLACES = [
  "dt, th, .legend .token, #how-panel :is(.token, p:last-child), .board :is(h2, .remark), .anatomy .about, .catalogue h3 + p",
  "#engine label, :is(#policy, #drafter, #num_assistant_tokens) [data-testid=block-info]",
].join();
const PAUSE_MS = 500; // before new texts are read

/** The entries for a text's terms. @param {string} text */
const entriesFor = (text) => TERMS.filter(([word]) => word.test(text));

/** The meanings of a text's terms, one per line. @param {string} text */
export const explanations = (text) => entriesFor(text).map(([, name, meaning]) => `${name}: ${meaning}.`).join("\n");

/** The meaning of a figure by its name; empty if the name says it. @param {string} name */
export const meaningOf = (name) => entriesFor(name)[0]?.[2] ?? "";

/** Mark the first term of each new text. */
function mark() {
  for (const place of document.querySelectorAll(PLACES)) {
    const texts = document.createTreeWalker(place, 4); // NodeFilter.SHOW_TEXT
    while (!place.querySelector(".word") && texts.nextNode()) {
      const text = /** @type {Text} */ (texts.currentNode);
      const match = entriesFor(text.data)[0]?.[0].exec(text.data);
      if (!match) continue;
      const word = Object.assign(document.createElement("span"), { className: "word", textContent: match[0] });
      word.tabIndex = place.matches("label") ? -1 : 0; // a radio button has the focus itself
      word.dataset.meaning = explanations(match[0]);
      text.splitText(match.index).deleteData(0, match[0].length);
      text.after(word);
    }
  }
}

/** @type {ReturnType<typeof setTimeout> | undefined} */ let timer;
new MutationObserver(() => {
  timer ??= setTimeout(() => { timer = undefined; mark(); if (!shown?.isConnected) explain(null); }, PAUSE_MS);
}).observe(document, { childList: true, subtree: true });

/** Tooltips of elements without `data-meaning`, such as tokens; built only when shown. @type {WeakMap<Element, () => string>} */
export const TIPS = new WeakMap();

/** The tooltip's text about a token and its round. @param {Element} token */
export const tipOf = (token) => [token, token.parentElement].map((element) => element && TIPS.get(element)?.()).filter(Boolean).join("\n");

/** The nearest explained element: around it, or in a radio button's label. @param {EventTarget | null} target @returns {HTMLElement | null} */
function explained(target) {
  if (!(target instanceof Element)) return null;
  return target.closest("[data-meaning], .text .token") ?? target.closest("label")?.querySelector("[data-meaning]") ?? null;
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
  const text = element?.dataset.meaning ?? (element && tipOf(element));
  if (!element || !text) return;
  tip.textContent = element.dataset.meaning ? text : [text, explanations(text)].filter(Boolean).join("\n");
  element.style.setProperty("anchor-name", "--meaning");
  element.setAttribute("aria-describedby", tip.id);
  document.body.append(tip);
  tip.showPopover();
}

// an element reached by the keyboard stays explained wherever the pointer is
document.addEventListener("pointerover", ({ target }) => explain(explained(target) ?? explained(document.querySelector(":focus-visible"))));
for (const kind of ["focusin", "click"]) document.addEventListener(kind, ({ target }) => explain(explained(target)));
document.addEventListener("keydown", ({ key }) => key === "Escape" && explain(null));
