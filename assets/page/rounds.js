// Turns the rounds of a record into elements of the page. A record is the same in the engine's process, in messages, in
// saved files and here; the page only adds sums over the rounds so far.

import { TIPS, explanations } from "./glossary.js";

/**
 * @typedef {{ id: number | null, text: string, probability?: number | null, entropy?: number | null }} Token
 * @typedef {{ id: number | null, text: string, verdict: "accepted" | "rejected" | "discarded", copied?: boolean, draft_probability?: number | null, target_probability?: number | null, draft_likeliest?: Token[], target_likeliest?: Token[] }} Proposal
 * @typedef {object} Round
 * @property {Token[]} committed
 * @property {number} seconds
 * @property {Proposal[] | null} proposed null: not even their number is known
 * @property {number | null} [draft_seconds]
 * @property {number | null} [verify_seconds]
 */
/**
 * A round with the figures at its end; 0 is the prefill, at which the clock of decoding starts.
 * `code`: whether each committed token is part of a fenced block.
 * @typedef {{ round: Round, number: number, first: number, ms: number, tokens: number, rate: number | null, accepted: number, proposed: number | null, alpha: number | null, thinking: boolean, code: boolean[] }} Timed
 */
/** @typedef {"plain" | "speculative"} SideName */

/** @type {readonly SideName[]} */
export const SIDES = ["plain", "speculative"];

/** Number of accepted proposals; if unreported, all committed tokens but the last, which is the target's. @param {Round} round */
export function acceptedIn({ proposed, committed }) {
  return proposed ? proposed.filter(({ verdict }) => verdict === "accepted").length : Math.max(committed.length - 1, 0);
}

/** A side's rounds, each with the figures at its end. */
export class Timeline {
  constructor() {
    /** @type {Timed[]} */ this.rounds = [];
    this.text = "";
    this.proposed = this.accepted = 0;
  }

  /** @param {Round[]} rounds @param {{ proposed: number, accepted: number } | null} counts a server's own, of the whole run */
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
        round, number: this.rounds.length, first: last?.tokens ?? 0, ms, tokens, accepted, proposed: round.proposed?.length ?? null,
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
  return proposed.some(({ verdict }) => verdict === "rejected") ? "correction token" : "bonus token";
}

/** A round as an element: accepted proposals, then rejected and discarded ones, then the target's own tokens. @param {Timed} timed @param {{ side: SideName, source?: string }} options source of the proposals' record */
export function renderRound(timed, { side, source = "measured" }) {
  const { round, number, first, code } = timed;
  const { committed, proposed } = round;
  const accepted = source === "bursts" ? 0 : timed.accepted; // a chunk is no round
  const element = make("span", "", "round");
  TIPS.set(element, () => roundTip(timed, side));
  const append = (/** @type {Token} */ token, /** @type {number} */ index, /** @type {string} */ kind, /** @type {() => string} */ explanation) => {
    const copied = index < accepted && proposed?.[index].copied;
    const marks = [token.text.includes("\n") && "break", !token.text && "empty", code[index] && "code", copied && "copied"].filter(Boolean);
    const span = make("span", token.text, ["token", kind, ...marks].join(" "));
    span.dataset.index = String(first + index);
    TIPS.set(span, explanation);
    element.append(span);
  };
  committed.slice(0, accepted).forEach((token, index) => append(token, index, "accepted", () => tip("accepted proposal", proposed?.[index], token, source)));
  for (const draft of proposed?.slice(accepted) ?? []) {
    const name = draft.verdict === "rejected" ? "rejected proposal" : "discarded proposal: it followed a rejected one and was never judged";
    const span = element.appendChild(make("span", visible(draft), `token ${draft.verdict}${draft.text.trim() ? "" : " blank"}${draft.copied ? " copied" : ""}`));
    TIPS.set(span, () => `${tip(name, draft, null, source)}\n${draft.verdict === "rejected" ? instead(round) : ""}`.trim());
  }
  const [kind, name] = side === "plain" ? ["plain", "target's token"] : ["own", number ? targetTokenName(round) : "target's token"];
  committed.slice(accepted).forEach((token, index) => append(token, accepted + index, kind, () => `${tip(name, null, token, source)}\n${instead(round)}`.trim()));
  return element;
}

/** A round as chips, each with the probabilities of draft and target. @param {Round} round */
export function renderChips(round) {
  const accepted = acceptedIn(round);
  const drafts = round.proposed ?? round.committed.slice(0, accepted).map(({ id, text }) => ({ id, text, verdict: "accepted", copied: false }));
  const odds = (/** @type {any} */ draft) => {
    const mine = draft.copied ? "copy" : known(draft.draft_probability) || known(draft.target_probability) ? fixed(draft.draft_probability) : "";
    return mine && known(draft.target_probability) ? `${mine} → ${fixed(draft.target_probability)}` : mine;
  };
  return [
    ...drafts.map((draft) => chip(visible(draft), draft.verdict + (draft.copied ? " copied" : ""), draft.verdict + (draft.copied ? ", copied" : ""), odds(draft))),
    ...round.committed.slice(accepted).map((token) => chip(visible(token), "own", targetTokenName(round), !known(token.probability) ? "" : `→ ${fixed(token.probability)}`)),
  ];
}

/** @param {string} text @param {string} kind @param {string} title @param {string} details */
function chip(text, kind, title, details) {
  const element = make("span", "", `chip ${kind}`);
  element.dataset.meaning = [explanations(title) || title, explanations(marks(text))].join("\n").trim();
  element.append(make("span", text, `token ${kind}`), make("small", details));
  return element;
}

/** A token's text, with marks if it would be invisible. @param {{ id: number | null, text: string }} draft */
const visible = ({ id, text }) => (id === null && !text ? "?" : (text.trim() ? text : text.replaceAll(" ", "␣").replaceAll("\t", "→") || "∅").replaceAll("\n", "↵"));
/** The marks that make up a text, which the glossary explains; else nothing. @param {string} text */
const marks = (text) => (/^[↵␣→∅]+$/.test(text) ? ` ${text}` : "");
/** @param {number | null | undefined} value */
const known = (value) => value !== null && value !== undefined;
/** @param {number | null | undefined} value */
const fixed = (value, digits = 2) => value?.toFixed(digits) ?? "–";

/** @param {string} tag @param {string} textContent @param {string} className @returns {HTMLElement} */
export function make(tag, textContent = "", className = "") {
  return Object.assign(document.createElement(tag), { textContent, className });
}

/** @param {string} name @param {Proposal | null | undefined} draft @param {Token | null} token @param {string} source */
function tip(name, draft, token, source) {
  const probability = token ? token.probability : draft?.target_probability;
  return [
    name + marks(visible(token ?? draft ?? { id: null, text: "" })),
    draft?.copied && "copied from the text so far",
    draft?.id === null && "the engine does not report its token",
    known(draft?.draft_probability) && !draft?.copied && `draft's probability ${fixed(draft?.draft_probability, 3)} (${source})`,
    known(probability) && `target's probability ${fixed(probability, 3)}`,
    known(token?.entropy) && `the target's entropy here ${fixed(token?.entropy)} bits`,
  ].filter(Boolean).join("\n");
}

/** The likeliest tokens of both sides where a proposal was rejected; else nothing. @param {Round} round */
export function instead({ proposed }) {
  const rejected = proposed?.find(({ verdict }) => verdict === "rejected");
  const likeliest = (/** @type {Token[] | undefined} */ tokens) => tokens?.map((token) => `${visible(token)} ${fixed(token.probability)}`).join(" · ");
  const sides = { target: likeliest(rejected?.target_likeliest), draft: likeliest(rejected?.draft_likeliest) };
  return Object.entries(sides).flatMap(([side, tokens]) => (tokens ? `${side}'s likeliest: ${tokens}` : [])).join("\n");
}

/** @param {Timed} timed @param {SideName} side */
function roundTip({ round, number, accepted, proposed }, side) {
  const ms = `${(1000 * round.seconds).toFixed(2)} ms`;
  if (!number) return `prefill (reading the prompt), ${ms}`;
  if (side === "plain") return `step ${number}, ${ms}`;
  return `round ${number}, ${ms}: ${proposed === null ? "number of proposals unknown" : `${proposed} proposed`}, ${accepted} accepted, ${round.committed.length} committed`;
}

/** A round in one line. @param {Round} round */
export function roundNote(round) {
  const ms = (/** @type {number | null | undefined} */ seconds) => (1000 * (seconds ?? 0)).toFixed(2);
  const parts = known(round.draft_seconds) ? ` (draft ${ms(round.draft_seconds)}, verify ${ms(round.verify_seconds)})` : "";
  return `${acceptedIn(round)} of ${round.proposed?.length ?? "?"} accepted · ${ms(round.seconds)} ms${parts}`;
}
