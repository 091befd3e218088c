"""Charts as data: the part of Plotly's figure format that `chart.js` draws, so that Plotly reads them, too. Colours
name variables of the style sheet, so that one figure serves light and dark.
"""

from collections.abc import Sequence
from typing import Any

Figure = dict[str, Any]
_COLOURS = ("own", "accepted", "rejected", "plain", "refused", "mute", "ink")
# Where speculation is as fast as plain decoding.
AT_ONE = {"x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": {"color": "var(--sd-ink)", "dash": "dash", "width": 1}}


def figure(x: str, y: str, *traces: Figure, **layout: Any) -> Figure:
    """`layout` may replace the axes."""
    return {"data": list(traces), "layout": {"xaxis": {"title": x}, "yaxis": {"title": y}} | layout}


def bars(name: str, x: Sequence[Any], y: Sequence[Any], colour: str = "accepted", **style: Any) -> Figure:
    """Several such traces stand side by side."""
    return {"type": "bar", "name": name, "x": x, "y": y, "marker": {"color": f"var(--sd-{colour})"}, **style}


def line(name: str, x: Sequence[Any], y: Sequence[Any], colour: str, **style: Any) -> Figure:
    look = {"color": f"var(--sd-{colour})"} | style.pop("line", {})
    return {"type": "scatter", "name": name, "x": x, "y": y, "line": look, "mode": "lines+markers", **style}


def colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def whiskers(middle: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str) -> Figure:
    above = [end - value for end, value in zip(high, middle, strict=True)]
    below = [value - end for end, value in zip(low, middle, strict=True)]
    return {"array": above, "arrayminus": below, "color": f"var(--sd-{colour})"}
