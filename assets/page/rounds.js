// Rounds: from the record that an engine made to elements of the page. A record is the same in the engine's process, in
// a message, in a saved file and here; what is added are sums over the rounds so far.

/**
 * @typedef {{ id: number | null, text: string, probability?: number | null, entropy?: number | null }} Token
 * @typedef {{ id: number | null, text: string, verdict: "accepted" | "rejected" | "discarded", draft_probability?: number | null, target_probability?: number | null }} Proposal
 * @typedef {object} Round
 * @property {Token[]} committed
 * @property {number} seconds
 * @property {Proposal[] | null} proposed null: not even their number is known
 * @property {number | null} [draft_seconds]
 * @property {number | null} [verify_seconds]
 */
/**
 * A round with the figures at its end; 0 is the prefill, at which the clock of decoding starts.
 * @typedef {{ round: Round, number: number, first: number, ms: number, tokens: number, rate: number | null, accepted: number, proposed: number | null, alpha: number | null, thinking: boolean }} Timed
 */
/** @typedef {"plain" | "speculative"} SideName */

/** @type {readonly SideName[]} */
export const SIDES = ["plain", "speculative"];

/** Number of accepted proposals; if unreported, all committed tokens but the target's own. @param {Round} round */
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

  /** @param {Round[]} rounds */
  push(rounds) {
    for (const round of rounds) {
      const last = this.rounds.at(-1);
      const tokens = (last?.tokens ?? 0) + round.committed.length;
      const ms = last ? last.ms + 1000 * round.seconds : 0;
      const accepted = acceptedIn(round);
      const before = this.thinks();
      this.text += round.committed.map(({ text }) => text).join("");
      if (last && round.proposed) {
        this.proposed += round.proposed.length;
        this.accepted += accepted;
      }
      this.rounds.push({
        round, number: this.rounds.length, first: last?.tokens ?? 0, ms, tokens, accepted, proposed: round.proposed?.length ?? null,
        rate: ms ? (1000 * (tokens - this.rounds[0].tokens)) / ms : null,
        alpha: this.proposed ? this.accepted / this.proposed : null,
        thinking: before || this.thinks(),
      });
    }
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

/** What hovering an element shows. @type {WeakMap<Element, () => string>} */
const TIPS = new WeakMap();

/** The explanation of a token and its round. @param {Element} token */
export function tipOf(token) {
  return [token, token.parentElement].map((element) => (element && TIPS.get(element))?.() ?? "").filter(Boolean).join("\n");
}

/** @param {Element} token @param {string} line */
export function addToTip(token, line) {
  const before = TIPS.get(token);
  TIPS.set(token, () => `${before?.()}\n${line}`);
}

/**
 * A round as an element: accepted proposals, those in vain, then the target's own token.
 * @param {Timed} timed
 * @param {{ side: SideName, source?: string, markdown?: Markdown | null }} options source of the proposals' record
 */
export function renderRound(timed, { side, source = "measured", markdown = null }) {
  const { round, number, accepted, first } = timed;
  const { committed, proposed } = round;
  const element = document.createElement("span");
  element.className = "round";
  TIPS.set(element, () => roundTip(timed, side));
  committed.slice(0, accepted).forEach((token, index) => {
    element.append(committedToken(token, "accepted", first + index, () => tip("accepted proposal", proposed?.[index], token, source), markdown));
  });
  for (const draft of proposed?.slice(accepted) ?? []) {
    const name = draft.verdict === "rejected" ? "rejected proposal" : "discarded proposal: it followed a rejected one and was never judged";
    element.append(span(`token ${draft.verdict}`, shown(draft), () => tip(name, draft, null, source)));
  }
  const [kind, name] = side === "plain" ? ["plain", "target's token"] : ["own", number ? targetTokenName(round) : "target's token"];
  committed.slice(accepted).forEach((token, index) => {
    element.append(committedToken(token, kind, first + accepted + index, () => tip(name, null, token, source), markdown));
  });
  return element;
}

/** A round as chips, each with the probabilities of draft and target. @param {Round} round */
export function renderChips(round) {
  const accepted = acceptedIn(round);
  const drafts = round.proposed ?? round.committed.slice(0, accepted).map(({ id, text }) => ({ id, text, verdict: "accepted" }));
  const odds = (/** @type {any} */ draft) => (!known(draft.draft_probability) && !known(draft.target_probability) ? "" : `${fixed(draft.draft_probability)} → ${fixed(draft.target_probability)}`);
  return [
    ...drafts.map((draft) => chip(shown(draft), draft.verdict, draft.verdict, odds(draft))),
    ...round.committed.slice(accepted).map(({ text, probability }) => chip(text, "own", targetTokenName(round), !known(probability) ? "" : `→ ${fixed(probability)}`)),
  ];
}

/** @param {string} text @param {string} kind @param {string} title @param {string} details */
function chip(text, kind, title, details) {
  const element = Object.assign(document.createElement("span"), { className: `chip ${kind}`, title });
  const token = span(`token ${kind}`, text.replaceAll("\n", "↵") || "·");
  element.append(token, Object.assign(document.createElement("small"), { textContent: details }));
  return element;
}

/** @param {{ id: number | null, text: string }} draft */
const shown = ({ id, text }) => (id === null ? "?" : text.replaceAll("\n", "↵"));
/** @param {number | null | undefined} value */
const known = (value) => value !== null && value !== undefined;
/** @param {number | null | undefined} value */
const fixed = (value, digits = 2) => value?.toFixed(digits) ?? "–";

/** @param {string} className @param {string} text @param {() => string} [explanation] */
function span(className, text, explanation) {
  const element = Object.assign(document.createElement("span"), { className, textContent: text });
  if (explanation) TIPS.set(element, explanation);
  return element;
}

/**
 * @param {Token} token
 * @param {string} kind
 * @param {number} index in the text
 * @param {() => string} explanation
 * @param {Markdown | null} markdown
 */
function committedToken({ text }, kind, index, explanation, markdown) {
  const element = span(`token ${kind}${text.includes("\n") ? " break" : ""}${text ? "" : " empty"}`, markdown ? "" : text, explanation);
  element.dataset.index = String(index);
  if (markdown) element.append(...markdown.elements(text));
  return element;
}

/** @param {string} name @param {Proposal | null | undefined} draft @param {Token | null} token @param {string} source */
function tip(name, draft, token, source) {
  const probability = token ? token.probability : draft?.target_probability;
  return [
    name,
    draft?.id === null && "the engine does not report its token",
    known(draft?.draft_probability) && `draft's probability ${fixed(draft?.draft_probability, 3)} (${source})`,
    known(probability) && `target's probability ${fixed(probability, 3)}`,
    known(token?.entropy) && `the target's entropy here ${fixed(token?.entropy)} bits`,
    token && !token.text && "no text of its own: part of a character, or a special token",
  ].filter(Boolean).join("\n");
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
  return `${acceptedIn(round)} of ${round.proposed?.length ?? "?"} accepted · ${(1000 * round.seconds).toFixed(2)} ms`;
}

const PARTS = /(```|\*\*|`|\||\n|(?<![^\n])#{1,6}(?=\s|$))/;
const ITEM = /^\s*([-+*]|\d+[.)])(\s|$)/;

/**
 * Formats Markdown token by token, as text arrives, so that each token keeps its colour: headings, bold text, code, and
 * rows of tables, which are what chat models write. Marks such as `**` are spans of their own, which the style sheet hides;
 * no text is dropped and none is revised: unclosed bold text and code end with their paragraph.
 */
export class Markdown {
  constructor() {
    this.fenced = this.info = this.code = this.strong = this.heading = this.row = this.closed = false;
    this.start = true; // of a line
    this.block = 0; // number of the code block
  }

  /** The spans of the next token. @param {string} text @returns {Node[]} */
  elements(text) {
    return text.split(PARTS).filter(Boolean).flatMap((part) => this.piece(part));
  }

  /** @param {string} part @returns {Node[]} */
  piece(part) {
    const style = this.style(part);
    this.start = part === "\n" || (this.start && !part.trim());
    if (!style) return [document.createTextNode(part)];
    const element = span(`md-${style}`, part);
    if (style === "block") element.dataset.block = String(this.block);
    if (part !== "```" || !this.fenced) return [element];
    const button = Object.assign(document.createElement("button"), { type: "button", className: "copy", ariaLabel: "Copy this code" });
    button.dataset.block = String(this.block);
    return [button, element];
  }

  /** @param {string} part */
  style(part) {
    if (part === "```" && (this.start || !this.code)) {
      this.fenced = this.info = !this.fenced;
      this.strong = this.code = false;
      this.closed = !this.fenced;
      this.block += Number(this.fenced);
      return "mark";
    }
    if (part === "\n") return this.lineEnd();
    this.closed = false;
    if (this.fenced) return this.info ? "mark" : "block";
    if (this.start) {
      const heading = /^#+$/.test(part);
      if (heading || part === "|" || ITEM.test(part)) this.strong = this.code = false; // these end a paragraph without a blank line
      Object.assign(this, { heading, row: part === "|" });
    }
    if (part === "`") this.code = !this.code;
    if (part === "`") return "mark";
    if (this.code) return "code";
    if (part === "**") this.strong = !this.strong;
    if (part === "**" || (this.heading && /^#+$/.test(part))) return "mark";
    if (this.row) return part === "|" || /^[-:\s]+$/.test(part) ? "rule" : "row";
    return this.heading ? "heading" : this.strong ? "strong" : "";
  }

  lineEnd() {
    const inside = this.fenced && !this.info;
    if (this.start) this.strong = this.code = false; // a blank line
    const { closed } = this;
    this.info = this.heading = this.row = this.closed = false;
    return closed ? "mark" : inside ? "block" : ""; // of a line with only a mark, nothing is left
  }
}
