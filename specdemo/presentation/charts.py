"""Plotly figures: their style on the page and in reports, the live charts of a race, and those of a finished run.

Colours are CSS variables that the browser resolves, so one figure serves light and dark. The live charts come without
data: the page extends their traces point by point during playback, which keeps the reader's zoom and allocates
nothing. Their layout and trace order are defined here.
"""

import json
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import plotly.graph_objects as go

from specdemo import metrics
from specdemo.records import Comparison, Run

_LAYOUT: dict[str, Any] = {
    "autosize": True,
    "height": 260,
    "margin": {"l": 48, "r": 16, "t": 8, "b": 40},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"family": "inherit", "size": 12, "color": "var(--sd-mute)"},
    "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
    "hovermode": "x unified",
    "hoverlabel": {"bgcolor": "var(--sd-card)", "bordercolor": "var(--sd-line)", "font": {"color": "var(--sd-ink)"}},
}
AXIS: dict[str, Any] = {"gridcolor": "var(--sd-line)", "zeroline": False, "rangemode": "tozero", "automargin": True}

_COLOURS = ("--sd-own", "--sd-accepted", "--sd-rejected", "--sd-plain", "--sd-refused", "--sd-mute", "--sd-ink")


def base_figure(**layout: Any) -> go.Figure:
    """Return an empty figure in the page's style, without Plotly's default template, which suits only light pages."""
    figure = go.Figure(layout=_LAYOUT | {"template": "none"} | layout)
    figure.update_xaxes(AXIS)
    figure.update_yaxes(AXIS)
    return figure


def colour(number: int) -> str:
    """Return the colour of one of several decoding strategies."""
    return f"var({_COLOURS[number % len(_COLOURS)]})"


def plain_line(figure: go.Figure) -> None:
    """Draw the reference line at 1, where speculation is as fast as plain decoding."""
    figure.add_hline(y=1, line={"color": "var(--sd-ink)", "dash": "dash", "width": 1})


_LIVE: dict[str, Any] = {"height": None, "showlegend": False, "margin": {"l": 40, "r": 12, "t": 6, "b": 34}}
"""Layout of the live charts, which fill their cards; the cards' headings explain the colours."""


def to_json(figure: go.Figure) -> str:
    """Return the figure as JSON for the page."""
    return json.dumps(figure.to_plotly_json())


def race_figures() -> str:
    """Return both live charts as a JSON object, by name."""
    return f'{{"clock": {clock_figure()}, "acceptance": {acceptance_figure()}}}'


def clock_figure() -> str:
    """Plot committed tokens against each side's own clock, in seconds; traces: plain, speculative."""
    figure = base_figure(**_LIVE)
    for name, colour, dash in (("plain", "var(--sd-plain)", "dot"), ("speculative", "var(--sd-accepted)", "solid")):
        line = {"color": colour, "dash": dash, "width": 2.5, "shape": "hv"}
        figure.add_scatter(x=[], y=[], name=name, mode="lines", line=line, hovertemplate="%{y} tokens")
    figure.update_xaxes(title="seconds of computing", hoverformat=".3f")
    figure.update_yaxes(title="tokens")
    return to_json(figure)


def acceptance_figure() -> str:
    """Plot proposals by round, accepted and not accepted, stacked, with the running α; traces in that order."""
    figure = base_figure(**_LIVE, barmode="stack", bargap=0.15)
    figure.add_bar(x=[], y=[], name="accepted", marker_color="var(--sd-accepted)")
    figure.add_bar(x=[], y=[], name="rejected or discarded", marker_color="var(--sd-refused)")
    line = {"color": "var(--sd-ink)", "width": 2}
    figure.add_scatter(x=[], y=[], name="running α", mode="lines", line=line, yaxis="y2", connectgaps=True)
    other = {"color": "var(--sd-plain)", "width": 2, "dash": "dot"}  # for the other run of an overlay
    figure.add_scatter(x=[], y=[], name="other α", mode="lines", line=other, yaxis="y2", connectgaps=True)
    figure.update_xaxes(title="round")
    right = AXIS | {
        "title": "α",
        "overlaying": "y",
        "side": "right",
        "range": [0, 1.02],
        "showgrid": False,
        "tickvals": [0, 0.5, 1],
    }
    figure.update_layout(yaxis=AXIS | {"title": "proposals", "nticks": 6}, yaxis2=right)
    return to_json(figure)


def timeline(run: Run) -> go.Figure:
    """Plot draft and verify phases on the speculative clock, in milliseconds; whole rounds if phases are unknown."""
    figure = base_figure(barmode="overlay", bargap=0.25, showlegend=False, hovermode="closest")
    begin = list(accumulate((step.seconds for step in run.rounds), initial=0.0))[:-1]
    if all(step.draft_seconds is not None for step in run.rounds):
        drafts = [step.draft_seconds or 0 for step in run.rounds]
        passes = [step.verify_seconds or 0 for step in run.rounds]
        verify = [start + seconds for start, seconds in zip(begin, drafts, strict=True)]
        _phases(figure, "draft", begin, drafts, "--sd-rejected")
        _phases(figure, "verify", verify, passes, "--sd-accepted")
    else:
        _phases(figure, "round", begin, [step.seconds for step in run.rounds], "--sd-plain")
    figure.update_xaxes(title="speculative clock, ms")
    figure.update_yaxes(autorange="reversed", rangemode="normal", showgrid=False, fixedrange=True)
    figure.update_layout(height=150)
    return figure


def _phases(figure: go.Figure, name: str, starts: Sequence[float], seconds: Sequence[float], colour: str) -> None:
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
    """Plot the share of judged proposals that were accepted, by the draft's probability in tenths."""
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
    """Plot the lookahead of each round, next to the oracle's at the same position."""
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
