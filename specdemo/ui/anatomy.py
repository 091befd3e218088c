"""The Anatomy tab: one run round by round, drawn by the browser from its record, and what follows from the rounds."""

from typing import Any

import gradio as gr

from specdemo.records import Comparison
from specdemo.results import metrics
from specdemo.results.figures import CHARTS, LIVE, as_data
from specdemo.results.summary import number
from specdemo.ui.views import view


def anatomy(comparison: Comparison) -> list[dict[str, Any]]:
    """Charts and a table, as parts of a board."""
    return [
        *(
            {"title": title, "figure": as_data(make(comparison))}
            for name, (title, make) in CHARTS.items()
            if name not in LIVE
        ),
        {"title": "Passes needed for this text", **_passes(comparison)},
    ]


def anatomy_view() -> gr.HTML:
    return view("anatomy")


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
