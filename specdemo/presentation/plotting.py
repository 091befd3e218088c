"""The style of all Plotly figures, on the page and in reports.

Colours are names of a style sheet's variables, resolved in the browser, so that one figure serves light and dark.
"""

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
