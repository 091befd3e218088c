"""Boards of a report, of step costs and of a run's anatomy: HTML and Plotly figures for named slots on the page.

Text is escaped here.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

import plotly.graph_objects as go
from markupsafe import Markup

from specdemo import metrics
from specdemo.estimate import by_position, by_thinking, race_of
from specdemo.experiments import Chart, Report, Series
from specdemo.presentation.charts import (
    accepted_figure,
    confidence_figure,
    lookahead_figure,
    timeline,
    to_json,
)
from specdemo.presentation.html import table_html, target_token_name
from specdemo.records import Comparison, DraftToken, Round, Token, Trial
from specdemo.strategies import SOURCES
from specdemo.summary import SPEED_COLUMNS, number, prompt_of, run_words, speed_cells, walk_through

_CARD = Markup(
    '<section class="card"><h2 data-place="{name}-title" hidden></h2>'
    '<div class="{kind}" data-place="{name}" hidden></div>'
    '<p class="remark" data-place="{name}-remark" hidden></p></section>'
)
_TEXT = Markup('<section class="card"><h2>{title}</h2><div data-place="{name}" hidden></div></section>')
_BOARD = Markup('<div class="board race">{opening}<div class="charts">{charts}</div>{tables}{notes}</div>')


def board(html: Mapping[str, str], charts: Mapping[str, go.Figure | None], *, whole: bool = True) -> str:
    """Return a board's update as JSON. A `whole` one clears the slots it does not name."""
    figures = {place: figure.to_plotly_json() for place, figure in charts.items() if figure is not None}
    return json.dumps({"html": html, "charts": figures, "whole": whole}, ensure_ascii=False)


def report_template(charts: Sequence[str], tables: Sequence[str]) -> str:
    """Return a board with slots for a report's charts and tables, its conclusion above and its notes below."""

    def cards(names: Sequence[str], kind: str) -> Markup:
        return Markup("").join(_CARD.format(name=name, kind=kind) for name in names)

    return _BOARD.format(
        opening=_TEXT.format(title="Conclusion", name="opening"),
        charts=cards(charts, "chart"),
        tables=cards(tables, "scroll"),
        notes=_TEXT.format(title="About these figures", name="notes"),
    )


EMPTY = board({}, {})


def report_board(report: Report) -> str:
    """Return a report as a board."""
    html = {"opening": _paragraphs(report.opening), "notes": _paragraphs(report.notes)}
    for name, table in report.tables.items():
        html |= _around(name, table.title, table.remark)
        html[name] = str(table_html(table.columns, table.rows))
    for name, chart in report.charts.items():
        html |= _around(name, chart.title, chart.remark)
    return board(html, {name: chart.figure for name, chart in report.charts.items()})


def _around(name: str, title: str, remark: str) -> dict[str, str]:
    return {f"{name}-title": str(Markup.escape(title)), f"{name}-remark": str(Markup.escape(remark))}


def _paragraphs(lines: Sequence[str]) -> str:
    return str(Markup("").join(Markup("<p>{}</p>").format(line) for line in lines if line))


_STEP = Markup(
    '<li class="step" data-number="{number}" data-text="{text}"><b>{number}</b><span class="chips">{chips}</span>'
    "<small>{note}</small></li>"
)
_CHIP = Markup(
    '<span class="chip {kind}" title="{name}"><span class="token {kind}">{text}</span><small>{details}</small></span>'
)
_COLUMNS = ("lookahead", "target passes", "draft passes", "τ")


def anatomy(comparison: Comparison) -> str:
    """Return the Anatomy view of a run as JSON: HTML and figures by name."""
    run = comparison.speculative
    return json.dumps(
        {
            "about": str(_about(comparison)),
            "explanation": str(
                Markup("").join(Markup("<p>{}</p>").format(line) for line in walk_through(comparison))
            ),
            "prompt": prompt_of(comparison),
            "prefill": run.prefill.committed[0].text if run.prefill.committed else "",
            "steps": "".join(_round_rows(comparison)),
            "table": str(_passes_table(comparison)),
            "timeline": to_json(timeline(run)),
            "confidence": to_json(confidence_figure(run)),
            "lookahead": to_json(lookahead_figure(comparison)),
            "accepted": to_json(accepted_figure(comparison)),
            "position": to_json(position_figure(comparison)),
            "parts": str(_parts_table(comparison)),
        },
        ensure_ascii=False,
    )


def _about(comparison: Comparison) -> Markup:
    run = comparison.speculative
    parts = [
        comparison.pair.name,
        run_words(comparison),
        f"{len(run.tokens)} tokens in {len(run.rounds)} rounds",
        f"proposals {comparison.trace_source}",
    ]
    return Markup("<p>{}</p>").format(" · ".join(parts))


def _round_rows(comparison: Comparison) -> Iterator[str]:
    for index, step in enumerate(comparison.speculative.rounds, 1):
        text = "".join(token.text for token in step.committed)
        chips = Markup("").join(_chips(step))
        yield str(_STEP.format(number=index, text=text, chips=chips, note=_note(step)))


def _chips(step: Round) -> Iterator[Markup]:
    accepted = step.accepted
    drafts = step.proposed or ()
    for draft in drafts:
        yield _chip(draft.text if draft.id is not None else "?", draft.verdict, draft.verdict, _odds(draft))
    if step.proposed is None:
        for token in step.committed[:accepted]:
            yield _chip(token.text, "accepted", "accepted", "")
    for token in step.committed[accepted:]:
        yield _chip(token.text, "own", target_token_name(step), _target_odds(token))


def _chip(text: str, kind: str, name: str, details: str) -> Markup:
    return _CHIP.format(kind=kind, name=name, text=text.replace("\n", "↵") or "·", details=details)


def _odds(draft: DraftToken) -> str:
    """Format the draft's probability, then the target's."""
    if draft.draft_probability is None and draft.target_probability is None:
        return ""
    return f"{number(draft.draft_probability)} → {number(draft.target_probability)}"


def _target_odds(token: Token) -> str:
    return "" if token.probability is None else f"→ {number(token.probability)}"


def _note(step: Round) -> str:
    proposed = "?" if step.proposed is None else str(len(step.proposed))
    source = f", proposed by {SOURCES[step.source]}" if step.source is not None else ""
    return f"{step.accepted} of {proposed} accepted{source} · {step.seconds * 1000:.2f} ms"


def _passes_table(comparison: Comparison) -> Markup:
    """Return target and draft passes of this run, of a constant lookahead of 5, and of the oracle."""
    run = comparison.speculative
    rows = [("this run", len(run.rounds), metrics.draft_passes(comparison), metrics.mean_accepted_length(run))]
    for name, passes in metrics.alternative_passes(comparison):
        tokens = len(comparison.draft_agreement or ())
        rows.append((name, passes.target, passes.draft, tokens / passes.target if passes.target else None))
    body = [
        (name, str(target), "unknown" if draft is None else str(draft), number(length))
        for name, target, draft, length in rows
    ]
    why = (
        "Computed from where the draft's greedy choice agrees with this text, which is exact in greedy decoding. The "
        "oracle ends every round just before the draft's first mismatch, so none of its proposals is rejected."
        if comparison.draft_agreement is not None
        else "The passes of other lookaheads are known only for a draft model in greedy decoding."
    )
    return table_html(_COLUMNS, body) + Markup("<p>{}</p>").format(why)


def _timed(comparison: Comparison) -> list[Trial]:
    """Return the race and its repeats, without those whose steps were not timed."""
    race = race_of(comparison)
    return [trial for trial in (race, *comparison.repeats) if trial is not None and trial.round_steps]


def position_figure(comparison: Comparison) -> go.Figure:
    """Plot speedup, with intervals, and α along the text, over the race and its repeats."""
    parts = by_position(_timed(comparison))
    names, speedups = [part.name for part in parts], [part.speedup for part in parts]
    lines = [
        Series(
            "speedup",
            names,
            [each.middle for each in speedups],
            [each.low for each in speedups],
            [each.high for each in speedups],
            [f"{part.speedup}, α {number(part.acceptance_rate)}" for part in parts],
        )
    ]
    if any(part.acceptance_rate is not None for part in parts):
        lines.append(Series("α", names, [part.acceptance_rate for part in parts]))
    return Chart("", "tokens", "speedup, α", lines).figure


def _parts_table(comparison: Comparison) -> Markup:
    """Return speedup, α and τ of thinking and of the answer; empty for a model that does not think."""
    rows = [(part.name, *speed_cells(part)) for part in by_thinking(_timed(comparison))]
    return table_html(("part", *SPEED_COLUMNS), rows) if rows else Markup("")
