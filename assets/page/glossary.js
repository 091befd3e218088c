// The field's words, explained where they stand: in our views, in Gradio's labels, and in replays. They are underlined
// with dots; the pointer, a tap or the Tab key shows what one means, and Escape hides it.

/** A word, its full name and its meaning. @type {[RegExp, string, string][]} */
const WORDS = [
  [/^\s*accepted\s*$/, "Accepted", "a guess that the target would have written itself"],
  [/^\s*rejected\s*$/, "Rejected", "the first guess of a round that the target would not have written"],
  [/discarded/i, "Discarded", "a guess after a rejected one, which is never judged"],
  [/^\s*the target's own\s*$|correction( or bonus)?( token)?/, "Correction token", "what the target writes in place of a rejected guess"],
  [/^\s*the target's own\s*$|(correction or )?bonus( token)?/, "Bonus token", "what the target adds after a round whose guesses were all accepted"],
  [/replayed/, "Replayed", "this engine does not report its guesses, so the draft made them again after the race"],
  [/acceptance by position/, "Acceptance by position", "how often the first, the second, … guess was accepted"],
  [/^\s*speedup\s*$/, "Speedup", "how many times as fast speculative decoding is"],
  [/(acceptance rate|running) α|α|acceptance rate/i, "Acceptance rate α", "share of all guesses so far that the target accepted"],
  [/mean acceptance length τ|τ|tokens a round/i, "Mean acceptance length τ", "tokens that a round adds to the text"],
  [/(verify cost )?v\(\d+\)|verify cost/, "Verify cost v(n)", "what checking n tokens costs, in steps of the target"],
  [/draft cost( c)?|\bcost c\b/, "Draft cost c", "what a guess costs, in steps of the target"],
  [/TPOT/, "TPOT, time per output token", "how long each token takes once writing has begun"],
  [/TTFT/, "TTFT, time to first token", "how long the answer takes to begin"],
  [/prefill/i, "Prefill", "reading the prompt, before the first token"],
  [/GenAI/, "GenAI", "OpenVINO's library for applications, as it is; it does not report which guesses it rejects"],
  [/traced/i, "Traced", "specdemo's own decoding loop on OpenVINO; it records every guess, with probabilities"],
  [/policy/i, "Lookahead policy", "the rule by which the draft stops guessing, and the target checks"],
  [/oracle/i, "Oracle", "knows where the draft errs and ends each round just before; no policy can do better"],
  [/^\s*lookahead\s*$/i, "Lookahead", "tokens guessed in a round (num_assistant_tokens); the number that suits this machine follows from step costs measured here and from how often the draft is right"],
  [/^\s*drafter\s*$/i, "Drafter", "what guesses the next tokens: a small model, or a search for what followed the same words before"],
  [/ [↵␣→∅]+$/m, "Marks", "↵ a line break, ␣ a space, → a tab, ∅ no text: a special token, or a part of a character"],
];
/** Where such words stand. In answers and prompts they are left alone. */
const PLACES = "dt, th, .legend .token, #how-panel :is(.token, p:last-child), .board :is(h2, .remark), .anatomy .about, #engine label, :is(#policy, #drafter, #num_assistant_tokens) [data-testid=block-info]";
const PAUSE_MS = 500; // before new texts are read

/** The entries for a text's words. @param {string} text */
const entriesFor = (text) => WORDS.filter(([word]) => word.test(text));

/** What a text's words mean, a line each. @param {string} text */
export const explanations = (text) => entriesFor(text).map(([, name, meaning]) => `${name}: ${meaning}.`).join("\n");

/** The meaning of a figure by its name; empty if the name says it. @param {string} name */
export const meaningOf = (name) => entriesFor(name)[0]?.[2] ?? "";

/** Mark the first word of each new text. */
function mark() {
  for (const place of document.querySelectorAll(PLACES)) {
    const texts = document.createTreeWalker(place, 4); // NodeFilter.SHOW_TEXT
    while (!place.querySelector(".word") && texts.nextNode()) {
      const text = /** @type {Text} */ (texts.currentNode), match = entriesFor(text.data)[0]?.[0].exec(text.data);
      if (!match) continue;
      const [range, word] = [document.createRange(), document.createElement("span")];
      range.setStart(text, match.index);
      range.setEnd(text, match.index + match[0].length);
      Object.assign(word, { className: "word", tabIndex: place.matches("label") ? -1 : 0 }); // a radio button has the focus itself
      word.dataset.meaning = explanations(match[0]);
      range.surroundContents(word);
    }
  }
}

/** @type {ReturnType<typeof setTimeout> | undefined} */ let soon;
new MutationObserver(() => {
  soon ??= setTimeout(() => { soon = undefined; mark(); if (!shown?.isConnected) explain(null); }, PAUSE_MS);
}).observe(document, { childList: true, subtree: true });

/** What elements mean that have no `data-meaning`, such as tokens; written only when it is read. @type {WeakMap<Element, () => string>} */
export const TIPS = new WeakMap();

/** What there is to say about a token and its round. @param {Element} token */
export const tipOf = (token) => [token, token.parentElement].map((element) => (element && TIPS.get(element))?.() ?? "").filter(Boolean).join("\n");

/** The element that explains itself and that this one is part of, or whose radio button it is. @param {EventTarget | null} target @returns {HTMLElement | null} */
function explained(target) {
  if (!(target instanceof Element)) return null;
  return target.closest("[data-meaning], .text .token") ?? target.closest("label")?.querySelector("[data-meaning]") ?? null;
}

const tip = Object.assign(document.createElement("div"), { id: "meaning", className: "tip", popover: "manual", role: "tooltip" });
/** @type {HTMLElement | null} */ let shown = null;

/** Show what an element means, in place of what was shown. @param {HTMLElement | null} element */
function explain(element) {
  if (shown === element) return;
  tip.remove();
  shown?.style.removeProperty("anchor-name");
  shown = element;
  const said = element?.dataset.meaning ?? (element && tipOf(element));
  if (!element || !said) return;
  tip.textContent = element.dataset.meaning ? said : [said, explanations(said)].filter(Boolean).join("\n");
  element.style.setProperty("anchor-name", "--meaning");
  element.setAttribute("aria-describedby", tip.id);
  document.body.append(tip);
  tip.showPopover();
}

// what the keyboard has reached stays explained wherever the pointer rests
document.addEventListener("pointerover", ({ target }) => explain(explained(target) ?? explained(document.querySelector(":focus-visible"))));
for (const kind of ["focusin", "click"]) document.addEventListener(kind, ({ target }) => explain(explained(target)));
document.addEventListener("keydown", ({ key }) => key === "Escape" && explain(null));
