// Turns the rounds of a record into elements of the page. A record is the same in the engine's process, in messages, in
// saved files and here; the page only adds sums over the rounds so far.

import { TIPS, explained } from "./glossary.js";

/** @type {readonly SideName[]} */
export const SIDES = ["plain", "speculative"];

/** Number of accepted proposals; if unreported, all committed tokens but the last, which is the target's. @param {Round} round */
export function acceptedIn({ proposed, committed }) {
  return proposed ? proposed.filter(({ outcome }) => outcome === "accepted").length : Math.max(committed.length - 1, 0);
}

/** A side's rounds, each with the figures at its end. */
export class Timeline {
  constructor() {
    /** @type {Timed[]} */ this.rounds = [];
    this.text = "";
    this.proposed = this.accepted = 0;
  }

  /** @param {Round[]} rounds @param {Counts} counts a server's own, of the whole run */
  push(rounds, counts = null) {
    const partly = counts && rounds.some(({ proposed }) => proposed === null); // then only the sums are right
    for (const round of rounds) {
      const last = this.rounds.at(-1);
      const tokens = (last?.tokens ?? 0) + round.committed.length;
      const ms = last ? last.ms + 1000 * round.seconds : 0;
      const accepted = acceptedIn(round);
      const before = this.thinks();
      const code = round.committed.map(({ text }) => {
        this.text += text;
        return this.text.split("```").length % 2 === 0;
      });
      if (last && round.proposed) {
        this.proposed += round.proposed.length;
        this.accepted += accepted;
      }
      this.rounds.push({
        round, number: this.rounds.length, first: last?.tokens ?? 0, ms, tokens, accepted,
        proposed: round.proposed?.length ?? null,
        rate: ms ? (1000 * (tokens - this.rounds[0].tokens)) / ms : null,
        alpha: this.proposed && !partly ? this.accepted / this.proposed : null,
        thinking: before || this.thinks(),
        code,
      });
    }
    const last = this.rounds.at(-1);
    if (last && counts?.proposed) last.alpha = counts.accepted / counts.proposed;
  }

  thinks() {
    return this.text.trimStart().startsWith("<think>") && !this.text.includes("</think>");
  }
}

/** Name the token that the target adds to a round. @param {Round} round */
function targetTokenName({ proposed }) {
  if (!proposed?.length) return "target's token";
  return proposed.some(({ outcome }) => outcome === "rejected") ? "correction token" : "bonus token";
}

/**
 * The tokens of a round in the order in which they are shown: accepted proposals, then rejected and discarded ones, then
 * the target's own tokens.
 * @param {Round} round @param {number} accepted @param {string} own their name @returns {Shown[]}
 */
function tokensOf({ committed, proposed }, accepted, own) {
  const vain = proposed?.slice(accepted) ?? [];
  return [
    ...committed.slice(0, accepted).map((token, index) => {
      return { token, draft: proposed?.[index], kind: "accepted", name: "accepted proposal", index };
    }),
    ...vain.map((draft) => ({ token: draft, draft, kind: draft.outcome, name: `${draft.outcome} proposal` })),
    ...committed.slice(accepted).map((token, offset) => ({ token, kind: "target", name: own, index: accepted + offset })),
  ];
}

/** A round as an element. @param {Timed} timed @param {{ side: SideName, source?: string }} options source of the proposals' record */
export function renderRound(timed, { side, source = "measured" }) {
  const { round, number, first, code } = timed;
  const accepted = source === "bursts" ? 0 : timed.accepted; // a chunk is no round
  const own = side === "plain" || !number ? "target's token" : targetTokenName(round);
  const element = make("span", "", "round");
  TIPS.set(element, () => roundTip(timed, side));
  for (const { token, draft, kind, name, index } of tokensOf(round, accepted, own)) {
    const shown = index !== undefined; // in the text
    const colour = kind === "target" && side === "plain" ? "plain" : kind;
    const span = make("span", shown ? token.text : visible(token), `token ${colour}`);
    if (shown) span.dataset.index = String(first + index);
    span.classList.toggle("break", shown && token.text.includes("\n"));
    span.classList.toggle("empty", shown && !token.text);
    span.classList.toggle("code", shown && code[index]);
    span.classList.toggle("blank", !shown && !token.text.trim());
    span.classList.toggle("copied", Boolean(draft?.copied));
    const contested = kind === "target" || kind === "rejected";
    TIPS.set(span, () => `${tip(name, draft, shown ? token : null, source)}\n${contested ? instead(round) : ""}`.trim());
    element.append(span);
  }
  return element;
}

/** A round as chips, each with the probabilities of draft and target. @param {Round} round */
export function renderChips(round) {
  return tokensOf(round, acceptedIn(round), targetTokenName(round)).map(({ token, draft, kind, name }) => {
    const chip = make("span", "", `chip ${kind}`);
    chip.classList.toggle("copied", Boolean(draft?.copied));
    const title = kind === "target" ? name : kind;
    chip.dataset.meaning = explained(title, draft?.copied && "copied", marks(token));
    const [mine, targets] = [draft?.draft_probability, draft ? draft.target_probability : token.probability];
    const drafts = draft?.copied ? "copy" : known(mine) || (draft && known(targets)) ? fixed(mine) : "";
    const odds = `${drafts} ${known(targets) ? `→ ${fixed(targets)}` : ""}`.trim();
    chip.append(make("span", visible(token), `token ${kind}`), make("small", odds));
    return chip;
  });
}

/** A token's text, with marks if it would be invisible. @param {{ id: number | null, text: string }} draft */
function visible({ id, text }) {
  const marked = text.trim() ? text : text.replaceAll(" ", "␣").replaceAll("\t", "→") || (id === null ? "?" : "∅");
  return marked.replaceAll("\n", "↵");
}
/** The term for the marks that such a token consists of; else nothing. @param {{ id: number | null, text: string }} token */
const marks = ({ id, text }) => !text.trim() && (text || id !== null) && "marks";
/** @param {number | null | undefined} value */
const known = (value) => value !== null && value !== undefined;
/** @param {number | null | undefined} value */
const fixed = (value, digits = 2) => value?.toFixed(digits) ?? "–";

/** The element that is there. @param {ParentNode} place @param {string} selector */
export const part = (place, selector) => /** @type {HTMLElement} */ (place.querySelector(selector));

/** Act on the element inside `place` that is clicked. @param {HTMLElement} place @param {string} selector @param {(pressed: HTMLElement) => void} act */
export function onPress(place, selector, act) {
  place.addEventListener("click", ({ target }) => {
    const pressed = target instanceof Element && /** @type {HTMLElement | null} */ (target.closest(selector));
    if (pressed) act(pressed);
  });
}

/** @param {string} tag @param {string} textContent @param {string} className @returns {HTMLElement} */
export function make(tag, textContent = "", className = "") {
  return Object.assign(document.createElement(tag), { textContent, className });
}

/** @param {string} name @param {Proposal | undefined} draft @param {Token | null} token @param {string} source */
function tip(name, draft, token, source) {
  const probability = token ? token.probability : draft?.target_probability;
  return explained(
    name,
    draft?.copied && "copied",
    draft?.id === null && "the engine does not report its token",
    !draft?.copied && known(draft?.draft_probability) && `draft's probability ${fixed(draft?.draft_probability, 3)} (${source})`,
    known(probability) && `target's probability ${fixed(probability, 3)}`,
    known(token?.entropy) && `the target's entropy here ${fixed(token?.entropy)} bits`,
    marks(token ?? draft ?? { id: null, text: "" }),
    source === "replayed" && draft && !draft.copied && source,
  );
}

/** The likeliest tokens of both sides where a proposal was rejected; else nothing. @param {Round} round */
export function instead({ proposed }) {
  const rejected = proposed?.find(({ outcome }) => outcome === "rejected");
  const sides = Object.entries({ target: rejected?.target_likeliest, draft: rejected?.draft_likeliest });
  return sides.filter(([, tokens]) => tokens?.length).map(([side, tokens]) => {
    return `${side}'s likeliest: ${tokens?.map((token) => `${visible(token)} ${fixed(token.probability)}`).join(" · ")}`;
  }).join("\n");
}

/** @param {Timed} timed @param {SideName} side */
function roundTip({ round, number }, side) {
  const ms = `${(1000 * round.seconds).toFixed(2)} ms`;
  if (!number) return `${explained("prefill")}\n${ms}`;
  return side === "plain" ? `step ${number}, ${ms}` : `round ${number}: ${roundNote(round)}`;
}

/** A round in one line. @param {Round} round */
export function roundNote(round) {
  const ms = (/** @type {number | null | undefined} */ seconds) => (1000 * (seconds ?? 0)).toFixed(2);
  const parts = known(round.draft_seconds) ? ` (draft ${ms(round.draft_seconds)}, verify ${ms(round.verify_seconds)})` : "";
  return `${acceptedIn(round)} of ${round.proposed?.length ?? "?"} accepted · ${ms(round.seconds)} ms${parts}`;
}
