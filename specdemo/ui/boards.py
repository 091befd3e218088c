"""Boards of a report, of step costs and of a run's anatomy: HTML and Plotly figures for named slots on the page.

Text is escaped here.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import plotly.graph_objects as go
from markupsafe import Markup

from specdemo import metrics
from specdemo.estimate import by_position, by_thinking, race_of
from specdemo.experiments import Line, Report, Result, curves, speedup_lines
from specdemo.metrics import AS_MEASURED, FORMULAS, WhatIf, predict
from specdemo.presentation.charts import (
    accepted_figure,
    base_figure,
    colour,
    confidence_figure,
    lookahead_figure,
    plain_line,
    timeline,
    to_json,
)
from specdemo.presentation.explain import walk_through
from specdemo.presentation.figures import SPEED_COLUMNS, number, percent, speed_cells
from specdemo.presentation.html import table_html, target_token_name
from specdemo.presentation.wording import prompt_of, run_words
from specdemo.records import Comparison, Costs, DraftToken, ModelPair, Round, Spread, Token, Trial
from specdemo.strategies import ENGINES, SOURCES, EngineName

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


def result_board(found: Result) -> str:
    """Return an experiment's results so far; an empty board before the first row."""
    return report_board(found.report()) if found.measured else EMPTY


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


_COLOURS = ("--sd-own", "--sd-rejected", "--sd-accepted", "--sd-plain")
_BANDWIDTH = (
    "Twice the memory bandwidth is assumed to double v(n) − 1: plain and draft steps then take half as long, but the "
    "arithmetic of more tokens takes as long as before."
)
_STEPS = ("context tokens", "plain step, ms", "draft step, ms", "first of a round, ms", "c")


def caption(pair: ModelPair, engine: EngineName) -> str:
    """Return the pair and engine of a board's figures as HTML."""
    return str(Markup("<p>{}</p>").format(f"{pair.name} · {ENGINES[engine].words}"))


class PairCosts(NamedTuple):
    """Step costs of a pair in an engine."""

    pair: ModelPair
    engine: EngineName
    costs: Costs

    def richer_than(self, other: "PairCosts") -> bool:
        """Check if these belong to the same pair and engine and cover more context lengths."""
        same = (self.pair, self.engine) == (other.pair, other.engine)
        return same and len(self.costs.contexts) > len(other.costs.contexts)


def prediction_board(measured: PairCosts, acceptance: float, what_if: WhatIf = AS_MEASURED) -> str:
    """Return only the predictions, which depend on acceptance and on what-if step costs."""
    html, figure = _expectation(measured.costs, acceptance, what_if)
    return board({"expectation": html}, {"prediction": figure}, whole=False)


def costs_board(measured: PairCosts, acceptance: float, what_if: WhatIf = AS_MEASURED) -> str:
    """Return measured step costs, and the speedups they predict for the draft model at this acceptance."""
    html, figure = _expectation(measured.costs, acceptance, what_if)
    texts = {
        "caption": caption(measured.pair, measured.engine),
        "steps": str(table_html(_STEPS, _steps(measured.costs))),
        "steps-remark": str(Markup.escape(f"c: {FORMULAS['draft_cost']}.")),
        "verify-remark": str(Markup.escape(f"v(n): {FORMULAS['verify_cost']}.")),
        "expectation": html,
        "change": _shape_change(measured.costs),
    }
    return board(texts, {"verify": _verify_figure(measured.costs), "prediction": figure})


def _steps(costs: Costs) -> Iterator[tuple[str, ...]]:
    """Yield rows for `_STEPS`: single steps at each context length."""
    for steps in costs.contexts:
        plain, draft = steps.passes[0], steps.draft
        cost = None if draft is None else draft.middle / plain.middle
        yield (str(steps.context), _quartiles(plain), _quartiles(draft), _quartiles(steps.first_draft), number(cost))


def _quartiles(seconds: Spread | None) -> str:
    """Format the median in milliseconds, with both quartiles in parentheses."""
    if seconds is None:
        return "–"
    low, middle, high = (f"{value * 1000:.2f}" for value in (seconds.low, seconds.middle, seconds.high))
    return f"{middle} ({low}–{high})"


def _shape_change(costs: Costs) -> str:
    if not costs.length_change:
        return ""
    share = percent(costs.length_change / costs.plain_step)
    return str(
        Markup(
            "Shape-change cost: a pass takes {} ms longer ({} of a plain step) if its query length differs from that "
            "of the pass before, since OpenVINO prepares every operation anew. Policies that vary the lookahead pay "
            "it; the traced engine pads a pass to the previous query length where that is cheaper."
        ).format(f"{costs.length_change * 1000:.2f}", share)
    )


def _verify_figure(costs: Costs) -> go.Figure:
    figure = base_figure()
    for steps, hue in zip(costs.contexts, _COLOURS, strict=False):
        one = steps.passes[0].middle
        middles = [spread.middle / one for spread in steps.passes]
        bars = {
            "type": "data",
            "symmetric": False,
            "array": [(spread.high - spread.middle) / one for spread in steps.passes],
            "arrayminus": [(spread.middle - spread.low) / one for spread in steps.passes],
            "thickness": 1,
        }
        figure.add_scatter(
            x=list(range(1, len(middles) + 1)),
            y=middles,
            error_y=bars,
            name=f"after {steps.context} tokens: v(1) is {one * 1000:.2f} ms",
            mode="lines+markers",
            line={"color": f"var({hue})"},
            hovertemplate="v(%{x}) = %{y:.2f}",
        )
    figure.update_xaxes(title="tokens n per pass")
    figure.update_yaxes(title="v(n)")
    return figure


def _expectation(costs: Costs, acceptance: float, what_if: WhatIf) -> tuple[str, go.Figure | None]:
    prediction = predict(costs, acceptance)
    if prediction is None:
        return str(
            Markup("<p>{}</p>").format("This pair's draft cost is unknown, so nothing can be predicted.")
        ), None
    figure = base_figure()
    curves(figure, prediction)
    what_if_note = _what_if(costs, acceptance, what_if, figure)
    plain_line(figure)
    figure.update_xaxes(title="lookahead γ")
    figure.update_yaxes(title="predicted speedup")
    best, textbook = prediction.best, prediction.textbook_best
    given = f"At an acceptance of {acceptance:.2f}"
    if best:
        sentence = f"{given} the best lookahead is {best}, predicted {prediction.predicted[best - 1]:.2f}×"
    else:
        sentence = f"{given} no lookahead is predicted to beat plain decoding"
    by_book = f"with v = 1 it would be {textbook}" if textbook else "nor with v = 1"
    length = f"τ = {FORMULAS['expected_length']}, where a is this acceptance"
    formula = f"Predicted, not measured: {FORMULAS['predicted_speedup']}, with {length}."
    return str(Markup("<p><b>{}</b>; {}. {}</p>").format(sentence, by_book, formula) + what_if_note), figure


def _what_if(costs: Costs, acceptance: float, what_if: WhatIf, figure: go.Figure) -> Markup:
    """Predict with what-if costs: add the curve to the figure and return the result as a sentence."""
    other = what_if.of(costs)
    prediction = predict(other, acceptance)
    if what_if == AS_MEASURED or prediction is None:
        return Markup("")
    figure.add_scatter(
        x=list(range(1, len(prediction.predicted) + 1)),
        y=list(prediction.predicted),
        name="what if",
        mode="lines",
        line={"color": "var(--sd-accepted)", "dash": "dash"},
        hovertemplate="%{y:.2f}×",
    )
    tokens, best = len(costs.verify), prediction.best
    outcome = (
        f"the best lookahead would be {best}, predicted {prediction.predicted[best - 1]:.2f}×"
        if best
        else "no lookahead would be predicted to beat plain decoding"
    )
    values = (
        f"c = {number(metrics.draft_cost(other))} (measured {number(metrics.draft_cost(costs))}) and "
        f"v({tokens}) = {number(metrics.verify_cost(other, tokens))} "
        f"(measured {number(metrics.verify_cost(costs, tokens))})"
    )
    bandwidth = "" if what_if.growth == 1 else f" {_BANDWIDTH}"
    return Markup("<p><b>What if</b>: with {}, {}.{}</p>").format(values, outcome, bandwidth)


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
    line = Line(
        "speedup",
        [part.name for part in parts],
        [part.speedup for part in parts],
        [f"{part.speedup}, α {number(part.acceptance_rate)}" for part in parts],
    )
    figure = speedup_lines([line], "tokens", y_title="speedup, α")
    rates = [part.acceptance_rate for part in parts]
    if any(rate is not None for rate in rates):
        dotted = {"color": colour(1), "dash": "dot"}
        figure.add_scatter(x=line.x, y=rates, name="α", mode="lines+markers", line=dotted, hovertemplate="%{y:.2f}")
        figure.update_layout(showlegend=True)
    return figure


def _parts_table(comparison: Comparison) -> Markup:
    """Return speedup, α and τ of thinking and of the answer; empty for a model that does not think."""
    rows = [(part.name, *speed_cells(part)) for part in by_thinking(_timed(comparison))]
    return table_html(("part", *SPEED_COLUMNS), rows) if rows else Markup("")
