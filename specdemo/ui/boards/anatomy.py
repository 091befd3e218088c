"""The anatomy of a finished run: its rounds one by one, how long they took, and what an oracle would have done.

Rounds are HTML with escaped text; charts are Plotly figures, drawn by the page when they come into view.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import accumulate

import plotly.graph_objects as go
from markupsafe import Markup

from specdemo.analysis import metrics
from specdemo.analysis.parts import accepted_per_round, by_position, by_thinking, race_of
from specdemo.experiments.report import Line, speedup_lines
from specdemo.presentation.explain import walk_through
from specdemo.presentation.figures import number
from specdemo.presentation.plotting import base_figure
from specdemo.presentation.wording import prompt_of, run_words
from specdemo.records import Comparison, DraftToken, Round, Run, Token, Trial
from specdemo.strategies import SOURCES
from specdemo.ui.html.figures import to_json
from specdemo.ui.html.parts import table_html

_ROW = Markup(
    '<li class="step" data-number="{number}" data-text="{text}"><b>{number}</b><span class="chips">{chips}</span>'
    "<small>{note}</small></li>"
)
_CHIP = Markup(
    '<span class="chip {kind}" title="{name}"><span class="token {kind}">{text}</span><small>{details}</small></span>'
)
_COLUMNS = ("lookahead", "target passes", "draft passes", "τ")


def anatomy(comparison: Comparison) -> str:
    """What the page shows of a run, as one JSON object: HTML and figures by name."""
    run = comparison.speculative
    return json.dumps(
        {
            "about": str(_about(comparison)),
            "explanation": str(
                Markup("").join(Markup("<p>{}</p>").format(line) for line in walk_through(comparison))
            ),
            "prompt": prompt_of(comparison),
            "prefill": run.prefill.committed[0].text if run.prefill.committed else "",
            "steps": "".join(_steps(comparison)),
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


def _steps(comparison: Comparison) -> Iterator[str]:
    for index, step in enumerate(comparison.speculative.rounds, 1):
        text = "".join(token.text for token in step.committed)
        chips = Markup("").join(_chips(step))
        yield str(_ROW.format(number=index, text=text, chips=chips, note=_note(step)))


def _chips(step: Round) -> Iterator[Markup]:
    accepted = step.accepted
    drafts = step.proposed or ()
    for draft in drafts:
        yield _chip(draft.text if draft.id is not None else "?", draft.verdict, draft.verdict, _odds(draft))
    if step.proposed is None:
        for token in step.committed[:accepted]:
            yield _chip(token.text, "accepted", "accepted", "")
    for token in step.committed[accepted:]:
        yield _chip(token.text, "own", "target's own", _own_odds(token))


def _chip(text: str, kind: str, name: str, details: str) -> Markup:
    return _CHIP.format(kind=kind, name=name, text=text.replace("\n", "↵") or "·", details=details)


def _odds(draft: DraftToken) -> str:
    """The draft's probability, then the target's."""
    if draft.draft_probability is None and draft.target_probability is None:
        return ""
    return f"{number(draft.draft_probability)} → {number(draft.target_probability)}"


def _own_odds(token: Token) -> str:
    return "" if token.probability is None else f"→ {number(token.probability)}"


def _note(step: Round) -> str:
    proposed = "?" if step.proposed is None else str(len(step.proposed))
    source = f", proposed by {SOURCES[step.source]}" if step.source is not None else ""
    return f"{step.accepted} of {proposed} accepted{source} · {step.seconds * 1000:.2f} ms"


def _passes_table(comparison: Comparison) -> Markup:
    """Passes of this run, with a constant lookahead of 5, and with the oracle."""
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


def timeline(run: Run) -> go.Figure:
    """Phases on the speculative clock, in milliseconds, one lane each; a single lane if the engine reports none."""
    figure = base_figure(barmode="overlay", bargap=0.25, showlegend=False, hovermode="closest")
    begin = list(accumulate((step.seconds for step in run.rounds), initial=0.0))[:-1]
    if all(step.draft_seconds is not None for step in run.rounds):
        drafts = [step.draft_seconds or 0 for step in run.rounds]
        passes = [step.verify_seconds or 0 for step in run.rounds]
        verify = [start + seconds for start, seconds in zip(begin, drafts, strict=True)]
        _lane(figure, "draft", begin, drafts, "--sd-rejected")
        _lane(figure, "verify", verify, passes, "--sd-accepted")
    else:
        _lane(figure, "round", begin, [step.seconds for step in run.rounds], "--sd-plain")
    figure.update_xaxes(title="speculative clock, ms")
    figure.update_yaxes(autorange="reversed", rangemode="normal", showgrid=False, fixedrange=True)
    figure.update_layout(height=150)
    return figure


def _lane(figure: go.Figure, name: str, starts: Sequence[float], seconds: Sequence[float], colour: str) -> None:
    figure.add_bar(
        x=[length * 1000 for length in seconds],
        base=[start * 1000 for start in starts],
        y=[name] * len(seconds),
        orientation="h",
        name=name,
        marker={"color": f"var({colour})", "line": {"color": "var(--sd-card)", "width": 1}},
        customdata=list(range(1, len(seconds) + 1)),
        hovertemplate="round %{customdata}: %{x:.3f} ms",
    )


def confidence_figure(run: Run) -> go.Figure:
    """Share of judged proposals that were accepted, by the draft's probability in tenths."""
    figure = base_figure()
    bins = metrics.acceptance_by_confidence(run)
    figure.add_bar(
        x=[(low + 0.5) / 10 for low in bins],
        y=[accepted / judged for accepted, judged in bins.values()],
        text=[f"{accepted}/{judged}" for accepted, judged in bins.values()],
        marker_color="var(--sd-accepted)",
        width=0.09,
        hovertemplate="%{text} accepted",
        showlegend=False,
    )
    line = {"color": "var(--sd-plain)", "dash": "dot"}
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", line=line, name="perfect calibration", hoverinfo="skip")
    figure.update_xaxes(title="draft's probability", range=[0, 1])
    figure.update_yaxes(title="accepted / judged", range=[0, 1.08])
    figure.update_layout(hovermode="closest")
    return figure


def lookahead_figure(comparison: Comparison) -> go.Figure:
    """Tokens proposed in each round, beside what the oracle would have proposed at the same place."""
    figure = base_figure()
    rounds = comparison.speculative.rounds
    numbers = list(range(1, len(rounds) + 1))
    chosen = [None if step.proposed is None else len(step.proposed) for step in rounds]
    figure.add_scatter(
        x=numbers, y=chosen, name="this run", mode="lines+markers", line={"color": "var(--sd-plain)", "shape": "hvh"}
    )
    oracle = metrics.oracle_lookaheads(comparison)
    if oracle is not None:
        style = {"color": "var(--sd-own)", "symbol": "diamond", "size": 8}
        figure.add_scatter(x=numbers, y=oracle, name="oracle", mode="markers", marker=style)
    figure.update_xaxes(title="round")
    figure.update_yaxes(title="tokens proposed")
    return figure


def _timed(comparison: Comparison) -> list[Trial]:
    """The race and its repeats, as far as their steps are known."""
    race = race_of(comparison)
    return [trial for trial in (race, *comparison.repeats) if trial is not None and trial.round_steps]


def accepted_figure(comparison: Comparison) -> go.Figure:
    """How many rounds of the race accepted 0, 1, 2, … proposals."""
    race, figure = race_of(comparison), base_figure(showlegend=False, hovermode="closest")
    counts = {} if race is None else accepted_per_round([race])
    figure.add_bar(
        x=list(counts),
        y=list(counts.values()),
        marker_color="var(--sd-accepted)",
        hovertemplate="%{y} rounds accepted %{x}<extra></extra>",
    )
    figure.update_xaxes(title="tokens accepted", dtick=1)
    figure.update_yaxes(title="rounds")
    return figure


def position_figure(comparison: Comparison) -> go.Figure:
    """Speedup along the text, with intervals, over the race and its repeats; α in the hover."""
    parts = by_position(_timed(comparison))
    line = Line(
        "speedup",
        [part.name for part in parts],
        [part.speedup for part in parts],
        [f"{part.speedup}, α {number(part.acceptance_rate)}" for part in parts],
    )
    return speedup_lines([line], "tokens")


def _parts_table(comparison: Comparison) -> Markup:
    """Thinking and answer apart; nothing where the model does not think."""
    rows = [
        (part.name, str(part.speedup), number(part.acceptance_rate), number(part.mean_accepted_length))
        for part in by_thinking(_timed(comparison))
    ]
    return table_html(("part", "speedup", "α", "τ"), rows) if rows else Markup("")
