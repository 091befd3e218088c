"""Plotly figures: their style on the page and in reports, and the two live charts of a race.

Colours are names of a style sheet's variables, resolved in the browser, so that one figure serves light and dark. The
live charts come without data. The page extends their traces point by point while it plays, which keeps the reader's
zoom and allocates nothing; their layout and the order of their traces are defined here.
"""

import json
from typing import Any

import plotly.graph_objects as go

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
    """An empty figure in the page's style, without Plotly's default template, whose colours only suit light pages."""
    figure = go.Figure(layout=_LAYOUT | {"template": "none"} | layout)
    figure.update_xaxes(AXIS)
    figure.update_yaxes(AXIS)
    return figure


def colour(number: int) -> str:
    """The colour of one of several decoding strategies."""
    return f"var({_COLOURS[number % len(_COLOURS)]})"


def plain_line(figure: go.Figure) -> None:
    """Mark where speculation is as fast as plain decoding."""
    figure.add_hline(y=1, line={"color": "var(--sd-ink)", "dash": "dash", "width": 1})


_LIVE: dict[str, Any] = {"height": None, "showlegend": False, "margin": {"l": 40, "r": 12, "t": 6, "b": 34}}
"""They fill their cards, whose headings name the colours."""


def to_json(figure: go.Figure) -> str:
    """The figure as the page expects it."""
    return json.dumps(figure.to_plotly_json())


def race_figures() -> str:
    """Both charts, by name, as a JSON object."""
    return f'{{"clock": {clock_figure()}, "acceptance": {acceptance_figure()}}}'


def clock_figure() -> str:
    """Committed tokens against each side's own clock, in seconds; traces: plain, speculative."""
    figure = base_figure(**_LIVE)
    for name, colour, dash in (("plain", "var(--sd-plain)", "dot"), ("speculative", "var(--sd-accepted)", "solid")):
        line = {"color": colour, "dash": dash, "width": 2.5, "shape": "hv"}
        figure.add_scatter(x=[], y=[], name=name, mode="lines", line=line, hovertemplate="%{y} tokens")
    figure.update_xaxes(title="seconds of computing", hoverformat=".3f")
    figure.update_yaxes(title="tokens")
    return to_json(figure)


def acceptance_figure() -> str:
    """Proposals by round, accepted and not accepted, stacked, with the running α; traces in that order."""
    figure = base_figure(**_LIVE, barmode="stack", bargap=0.15)
    figure.add_bar(x=[], y=[], name="accepted", marker_color="var(--sd-accepted)")
    figure.add_bar(x=[], y=[], name="rejected or discarded", marker_color="var(--sd-refused)")
    line = {"color": "var(--sd-ink)", "width": 2}
    figure.add_scatter(x=[], y=[], name="running α", mode="lines", line=line, yaxis="y2", connectgaps=True)
    other = {"color": "var(--sd-plain)", "width": 2, "dash": "dot"}  # of another run, where two are overlaid
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
