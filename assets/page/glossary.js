// The field's words, explained where the pointer rests on them: in our views, in Gradio's labels, and in replays.

/** @type {[RegExp, string][]} */
const WORDS = [
  [/^\s*accepted\s*$/, "Accepted: a guess that the target would have written itself."],
  [/^\s*rejected\s*$/, "Rejected: the first guess of a round that the target would not have written."],
  [/discarded/i, "Discarded: a guess after a rejected one, which is never judged."],
  [/^\s*own\s*$|correction/, "Correction token: what the target writes in place of a rejected guess."],
  [/^\s*own\s*$|bonus/, "Bonus token: what the target adds after a round whose guesses were all accepted."],
  [/replayed/, "Replayed: this engine does not report its guesses, so the draft made them again after the race."],
  [/α|acceptance rate/i, "Acceptance rate α: accepted / proposed tokens; running: over all rounds so far."],
  [/τ|tokens a round/, "Mean acceptance length τ: tokens that a round adds to the text; 1 in plain decoding."],
  [/v\(\d+\)|verify cost/, "Verify cost v(n): time of a target pass over n tokens / over one token."],
  [/draft cost|\bcost c\b/, "Draft cost c: time of one draft step / of one plain step of the target."],
  [/TPOT/, "TPOT, time per output token: time of decoding / tokens, without prefill."],
  [/TTFT/, "TTFT, time to first token: from the request to the first token."],
  [/prefill/i, "Prefill: reading the prompt, before the first token."],
  [/GenAI/, "GenAI: OpenVINO's library for applications, as it is. It does not report which guesses it rejects."],
  [/traced/i, "Traced: specdemo's own decoding loop on OpenVINO. It records every guess, with probabilities."],
  [/policy/i, "Lookahead policy: the rule by which the draft stops guessing, and the target checks."],
  [/oracle/i, "Oracle: knows where the draft errs, and ends each round just before. No policy can do better."],
  [/^\s*lookahead\s*$/i, "Lookahead: tokens guessed in a round (num_assistant_tokens)."],
];

/** The explanations of a text's words, a line each. @param {string} text */
export function explanations(text) {
  return WORDS.filter(([word]) => word.test(text)).map(([, meaning]) => meaning).join("\n");
}

document.addEventListener("pointerover", ({ target }) => {
  if (!(target instanceof HTMLElement) || (target.title && !target.dataset.explained)) return; // it explains itself
  const said = explanations([...target.childNodes].map((node) => (node instanceof Text ? node.data : "")).join(" "));
  if (said === target.title) return;
  target.title = said;
  target.dataset.explained = "true";
});
