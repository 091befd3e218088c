// The shapes of data that the page's scripts share, for the type check alone: browsers never load this file.

type SideName = "plain" | "speculative";

// A record as `exports/schema.py` writes it; before the end of its run, without sides and summary.

interface Token {
  id: number | null;
  text: string;
  probability?: number | null;
  entropy?: number | null;
}

interface Proposal {
  id: number | null;
  text: string;
  outcome: "accepted" | "rejected" | "discarded";
  copied?: boolean;
  draft_probability?: number | null;
  target_probability?: number | null;
  draft_likeliest?: Token[];
  target_likeliest?: Token[];
}

interface Round {
  committed: Token[];
  seconds: number;
  /** null: not even their number is known */
  proposed: Proposal[] | null;
  draft_seconds?: number | null;
  verify_seconds?: number | null;
}

type Run = { prefill: Round; rounds: Round[]; finish_reason: string };
type Turn = { prompt: string; answer: string };
type SettingsUpdate = { round: number; label: string };
/** A server's own, of a whole run. */
type Counts = { proposed: number; accepted: number } | null;
type Metric = { name: string; plain: string; speculative: string; meaning?: string; formula: string };
type Comparison = any;

/** A finished run. */
type Finished = { run: string; record: Comparison; anatomy: Part[] | null };

/** A round with the figures at its end; 0 is the prefill, at which the clock of decoding starts. */
interface Timed {
  round: Round;
  number: number;
  /** index of its first token */
  first: number;
  ms: number;
  tokens: number;
  rate: number | null;
  accepted: number;
  proposed: number | null;
  alpha: number | null;
  thinking: boolean;
  /** whether each committed token is part of a fenced block */
  code: boolean[];
}

type Sides = Record<SideName, Timed[]>;

/** A token as a round shows it. */
interface Shown {
  token: Token;
  draft?: Proposal;
  /** its outcome, or `target` for the target's */
  kind: string;
  name: string;
  /** among the committed tokens; none if it is not part of the text */
  index?: number;
}

/** Plotly's, in the light scheme's colours and without the template. */
type Figure = { data: any[]; layout: any };

interface PageCharts {
  script: string;
  colours: Record<string, string>;
  template: any;
  config: any;
  charts: Record<string, Figure>;
}

/** Paragraphs, a table, or a chart, with its title above and a remark on how to read it below. */
interface Part {
  title?: string;
  remark?: string;
  paragraphs?: string[];
  columns?: string[];
  rows?: string[][];
  figure?: Figure;
}

/** A row of the table of a prompt's runs. Runs of earlier versions lack the ends of the speedup's interval. */
interface Row {
  group: string;
  setting: string;
  accepted: number | null;
  length: number | null;
  speedup: number | null;
  low?: number | null;
  high?: number | null;
}

/** A run in the browser's storage; the race opens `packed`. */
interface StoredRun {
  run: string;
  when: number;
  prompt: string;
  headline: string;
  made_by: string;
  row: Row;
  packed: string;
}

/** Fires an event of a widget. */
type Trigger = (event: string, data: object) => void;

/** Gradio's arguments to a view's script. */
interface Widget {
  element: HTMLElement;
  trigger: Trigger;
  props: { value: any };
  watch: (name: string, changed: () => void) => void;
}

/** A view; what it returns receives values, unless Gradio shows them. */
type View = (widget: Widget) => ((value: any) => void) | void;
