"""The Anatomy tab: one run round by round, drawn by the browser from its record, and what follows from the rounds."""

from typing import Any

import gradio as gr

from specdemo import metrics
from specdemo.exports.charts import Figure, bars, figure, line
from specdemo.records import Comparison
from specdemo.summary import number
from specdemo.ui.views import view


def anatomy(comparison: Comparison) -> list[dict[str, Any]]:
    """Charts and a table, as parts of a board."""
    confidence = _confidence(metrics.acceptance_by_confidence(comparison.speculative))
    return [
        {"title": "Acceptance by draft confidence", "figure": confidence},
        {"title": "Lookahead by round, beside the oracle's", "figure": _lookahead(comparison)},
        {"title": "Rounds by number of accepted tokens", "figure": _accepted(comparison)},
        {"title": "Passes needed for this text", **_passes(comparison)},
    ]


def anatomy_view() -> gr.HTML:
    return view("anatomy")


def _confidence(bins: dict[int, tuple[int, int]]) -> Figure:
    """The share of judged proposals that were accepted, by the draft's probability in tenths."""
    shares = bars(
        "judged proposals",
        [(low + 0.5) / 10 for low in bins],
        [accepted / judged for accepted, judged in bins.values()],
        text=[f"{accepted} of {judged} accepted" for accepted, judged in bins.values()],
        width=0.1,
    )
    right = line("perfect calibration", [0, 1], [0, 1], "plain", line={"dash": "dot"}, mode="lines", hoverinfo="skip")
    axes = {"xaxis": {"title": "draft's probability", "range": [0, 1]}}
    return figure("", "accepted / judged", shares, right, **axes)


def _lookahead(comparison: Comparison) -> Figure:
    """The lookahead of each round, next to the oracle's at the same position."""
    rounds = comparison.speculative.rounds
    numbers = list(range(1, len(rounds) + 1))
    chosen = [None if step.proposed is None else len(step.proposed) for step in rounds]
    traces = [line("this run", numbers, chosen, "plain", line={"shape": "hv"})]
    oracle = metrics.oracle_lookaheads(comparison)
    if oracle is not None:
        traces.append(line("oracle", numbers, oracle, "own", mode="markers"))
    return figure("round", "tokens proposed", *traces)


def _accepted(comparison: Comparison) -> Figure:
    counts = metrics.accepted_per_round(comparison.speculative)
    axes = {"xaxis": {"title": "tokens accepted", "dtick": 1, "range": [-0.5, max(counts, default=0) + 0.5]}}
    return figure("", "rounds", bars("", list(counts), list(counts.values())), **axes)


def _passes(comparison: Comparison) -> dict[str, Any]:
    run, agreement = comparison.speculative, comparison.draft_agreement
    rows = [("this run", len(run.rounds), metrics.draft_passes(comparison), metrics.mean_acceptance_length(run))]
    if agreement is not None:
        best = metrics.oracle(agreement, comparison.settings.max_new_tokens - 1)
        rows.append(("oracle", len(best), sum(best), len(agreement) / len(best) if best else None))
    return {
        "columns": ["lookahead", "target passes", "draft passes", "τ"],
        "rows": [
            [name, str(target), "unknown" if draft is None else str(draft), number(length)]
            for name, target, draft, length in rows
        ],
        "remark": "Computed from where the draft's greedy choice agrees with this text, which is exact in greedy "
        "decoding. The oracle ends every round just before the draft's first mismatch, so none of its proposals is "
        "rejected."
        if agreement is not None
        else "The oracle's passes are known only for a draft model in greedy decoding.",
    }
