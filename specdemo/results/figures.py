"""Every chart as a Plotly figure, for the page, files, reports and Python: one template, and one function per chart.

Colours are the light ones of the style sheet; a dark page replaces each with its counterpart (`assets/page/plot.js`).
A chart that grows during a race names the columns of its traces in `meta`. Here `columns` computes them from a
finished run, and its namesake there from rounds as they arrive; a test compares both.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from importlib.metadata import version
from importlib.resources import files
from itertools import cycle
from typing import Any

from specdemo.errors import UsageError, listed, quoted
from specdemo.files import ASSETS, colours
from specdemo.records import SIDES, Comparison, Run
from specdemo.results import metrics

Figure = Any  # plotly.graph_objects.Figure, which has no types
Trace = dict[str, Any]
_COLOURS = ("target", "accepted", "rejected", "plain", "unaccepted", "mute", "ink")  # of lines and bars, in order
_PATTERNS = ("", "/", "x", ".", "\\", "-", "+")  # of bars in the same order, so that they also differ in grey
_MAX_STRETCH = 2  # times the largest value: how far error bars may stretch an axis


def figure(x: str, y: str, *traces: Trace, **layout: Any) -> Figure:
    """`layout` may extend the axes."""
    import plotly.graph_objects as go  # takes half a second, which no start of the program should wait for

    axes = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}
    return go.Figure(
        {"data": list(traces), "layout": {"template": _plotly_defaults()["template"], **axes}}
    ).update_layout(**layout)


@cache
def _plotly_defaults() -> dict[str, Any]:
    """Plotly's template, and its configuration, whose mode bar lacks "Share chart", which uploads."""
    text = (ASSETS / "plotly.json").read_text(encoding="utf-8")
    template: dict[str, Any] = json.loads(re.sub(r"var\(--sd-(\w+)\)", lambda match: colours()[match[1]], text))
    return template


def line(name: str, colour: str, x: Iterable[Any] = (), y: Iterable[Any] = (), **style: Any) -> Trace:
    look = {"color": colours()[colour]} | style.pop("line", {})
    return {"type": "scatter", "mode": "lines", "name": name, "x": list(x), "y": list(y), "line": look, **style}


def bars(
    name: str, colour: str, x: Iterable[Any] = (), y: Iterable[Any] = (), hatch: str = "", **style: Any
) -> Trace:
    pattern = {"shape": hatch, "fillmode": "overlay", "fgcolor": colours()["card"], "size": 6, "solidity": 0.25}
    look = {"color": colours()[colour], "pattern": pattern}
    return {"type": "bar", "name": name, "x": list(x), "y": list(y), "marker": look, **style}


# Charts that grow during a race.

# ten rounds at least, so that ticks are whole numbers from the first round on
_ROUND = {"unifiedhovertitle": {"text": "round %{x}"}, "autorangeoptions": {"include": 10}}


def _grow(make: Callable[..., Trace], name: str, colour: str, side: str, x: str, y: str, **style: Any) -> Trace:
    return make(name, colour, meta={"side": side, "x": x, "y": y}, **style)


def _tokens() -> Figure:
    stairs, across = {"shape": "hv"}, ("seconds", "tokens")
    said = {"hovertemplate": "%{y} tokens at %{x:.2f} s"}  # the sides' rounds end at different times
    plain = _grow(line, "plain", "plain", "plain", *across, line=stairs | {"dash": "dot"}, **said)
    other = _grow(line, "speculative", "accepted", "speculative", *across, line=stairs, **said)
    scale = {"unifiedhovertitle": {"text": "%{x:.2f} s"}}
    return figure("seconds of computing", "tokens", plain, other, xaxis=scale)


def _acceptance() -> Figure:
    place = ("speculative", "round")
    accepted = _grow(bars, "accepted", "accepted", *place, "accepted")
    unaccepted = _grow(bars, "not accepted", "unaccepted", *place, "unaccepted", hatch="/")
    rate = _grow(line, "α", "ink", *place, "alpha", yaxis="y2", hovertemplate="%{y:.2f}")
    mark = {"symbol": "line-ew-open", "size": 9, "color": colours()["ink"], "line": {"width": 2}}
    copied = _grow(line, "of them copied", "ink", *place, "copied", mode="markers", marker=mark)
    scale = {"range": [0, 1.02], "tickvals": [0, 0.5, 1], "overlaying": "y", "side": "right", "showgrid": False}
    axes = {"xaxis": _ROUND, "yaxis": {"nticks": 4}, "yaxis2": scale | {"title": {"text": "α"}}}
    return figure("round", "proposals", accepted, unaccepted, rate, copied, **axes, margin={"r": 40})


def _timing() -> Figure:
    """Where a round's time went, as far as the engine records it, beside the plain step of the same number."""
    parts = ("verify", "accepted", "verify", ""), ("draft", "target", "draft", "/"), ("rest", "mute", "rest", ".")
    unit = {"hovertemplate": "%{y:.2f} ms"}
    traces = [
        _grow(bars, name, colour, "speculative", "round", column, hatch=hatch, **unit)
        for name, colour, column, hatch in (*parts, ("round", "accepted", "whole", ""))
    ]
    steps = _grow(line, "plain", "plain", "plain", "round", "step", line={"dash": "dot", "shape": "hvh"}, **unit)
    return figure("round, or plain step", "ms", *traces, steps, xaxis=_ROUND)


RACE_CHARTS: dict[str, Callable[[], Figure]] = {"tokens": _tokens, "acceptance": _acceptance, "timing": _timing}


def columns(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the columns of the prefill (round 0) and of every round, without unknown values; parts are in ms."""
    seconds, tokens, accepted, proposed = 0.0, 0, 0, 0
    for number, step in enumerate((run.prefill, *run.rounds) if run.tokens else ()):
        seconds += step.seconds if number else 0.0
        tokens += len(step.committed)
        row: dict[str, Any] = {"round": number or None, "seconds": seconds, "tokens": tokens}
        if number and step.proposed is not None:
            accepted, proposed = accepted + step.accepted, proposed + len(step.proposed)
            row |= {"accepted": step.accepted, "unaccepted": len(step.proposed) - step.accepted}
            row["alpha"] = accepted / proposed if proposed else None
            row["copied"] = len(step.proposed) - metrics.drafted(step) or None
        times = step.seconds, step.draft_seconds, step.verify_seconds
        whole, draft, verify = (1000 * (seconds_of or 0.0) for seconds_of in times)
        parts = {"draft": draft, "verify": verify, "rest": max(whole - draft - verify, 0.0)}
        yield row | {"step": whole} | (parts if draft or verify else {"whole": whole})


def _filled(name: str, comparison: Comparison) -> Figure:
    chart = RACE_CHARTS[name]()
    rows_of = {side: [*columns(comparison.side(side))] for side in SIDES}
    for trace in chart.data:
        x, y = trace.meta["x"], trace.meta["y"]
        rows = [row for row in rows_of[trace.meta["side"]] if row.get(x) is not None and row.get(y) is not None]
        trace.update(x=[row[x] for row in rows], y=[row[y] for row in rows])
    for update in comparison.settings_updates:
        if update.round < len(rows_of["speculative"]):
            at = rows_of["speculative"][update.round - 1]["seconds"] if name == "tokens" else update.round - 0.5
            chart.add_shape(x0=at, x1=at, y0=0, y1=1, yref="paper")
            chart.add_annotation(x=at, y=1, yref="paper", text=update.label)
    return chart


# Charts of a finished run.


def _confidence(comparison: Comparison) -> Figure:
    """The share of judged proposals that were accepted, by the draft's probability in tenths."""
    bins = metrics.acceptance_by_confidence(comparison.speculative)
    middles, shares = [(low + 0.5) / 10 for low in bins], [accepted / judged for accepted, judged in bins.values()]
    labels = [f"{accepted} of {judged} accepted" for accepted, judged in bins.values()]
    style: dict[str, Any] = {"hovertext": labels, "hovertemplate": "%{hovertext}", "width": 0.09}
    right = line("perfect calibration", "plain", [0, 1], [0, 1], line={"dash": "dot"}, hoverinfo="skip")
    said = {"unifiedhovertitle": {"text": "where the draft is %{x:.0%} sure"}}
    axes = {"xaxis": {"range": [0, 1]} | said, "yaxis": {"range": [0, 1.02]}}
    tenths = bars("judged proposals", "accepted", middles, shares, **style)
    return figure("draft's probability", "accepted / judged", tenths, *[right] * bool(bins), **axes)


# By name: the title, and the function.
CHARTS: dict[str, tuple[str, Callable[[Comparison], Figure]]] = {
    "tokens": ("Tokens over time", lambda comparison: _filled("tokens", comparison)),
    "acceptance": ("Acceptance by round", lambda comparison: _filled("acceptance", comparison)),
    "timing": ("Milliseconds a round", lambda comparison: _filled("timing", comparison)),
    "confidence": ("Acceptance by draft confidence", _confidence),
}


def chart(comparison: Comparison, name: str) -> Figure:
    """UsageError: there is no such chart."""
    if name not in CHARTS:
        raise UsageError(f"There is no chart {quoted(name)}; the charts are {listed([*CHARTS])}.")
    title, make = CHARTS[name]
    return make(comparison).update_layout(title={"text": title}, margin={"t": 70})


# Charts of several runs.

# On the x axis, the value, the ends of its interval, and words to show instead of it.
ChartPoint = tuple[Any, float | None, float | None, float | None, str]


def xy_chart(x: str, y: str, groups: Mapping[str, Sequence[ChartPoint]], *, along: bool = True) -> Figure:
    """Lines along a scale, or bars, with intervals, and a line at 1, where speculation changes nothing."""
    traces: list[Trace] = []
    for (name, spots), colour, hatch in zip(groups.items(), cycle(_COLOURS), cycle(_PATTERNS)):
        places, values, lows, highs, words = zip(*spots, strict=True) if spots else ((),) * 5
        style: dict[str, Any] = {"hovertext": words, "hovertemplate": "%{hovertext}"}
        if None not in highs:
            above, below = ([abs(a - b) for a, b in zip(ends, values, strict=True)] for ends in (highs, lows))
            style["error_y"] = {"array": above, "arrayminus": below, "color": colours()["mute"]}
        if along:
            style |= {"mode": "lines+markers", "marker": {"size": 8, "symbol": len(traces)}}
        more = {} if along else {"hatch": hatch}
        traces.append(
            (line if along else bars)(_literal(name), colour, map(_literal, places), values, **more, **style)
        )
    spots = [spot for group in groups.values() for spot in group]
    most = _MAX_STRETCH * max((value or 0.0 for _, value, *_ in spots), default=1.0)
    scale = {"range": [0, most]} if any((high or 0.0) > most for *_, high, _ in spots) else {}
    chart = figure(x, y, *traces, yaxis=scale, barmode="group", showlegend=len(groups) > 1)
    return chart.add_hline(y=1, line={"dash": "dash"})


def _literal(place: Any) -> Any:
    """Escape markup: Plotly renders some tags, and names of tasks and files come from users."""
    return escape(place, quote=False) if isinstance(place, str) else place


# For browsers.


def as_data(chart: Figure) -> dict[str, Any]:
    """Without the template, which `page_charts` holds once."""
    data: dict[str, Any] = chart.to_dict()
    del data["layout"]["template"]
    return data


@cache
def page_charts() -> dict[str, Any]:
    """Everything a script needs to draw figures, with the empty charts that it fills itself."""
    empty = {name: as_data(make()) for name, make in RACE_CHARTS.items()}
    return {"script": script_name(), "charts": empty, "colours": colours(), **_plotly_defaults()}


def script_name() -> str:
    """Named after the version, so that browsers can cache it."""
    return f"specdemo/plotly-{version('plotly')}.js"


@cache
def plotly_js() -> bytes:
    """Plotly's script, compressed with gzip: 1.5 MB instead of 4.8."""
    return gzip.compress(files("plotly").joinpath("package_data", "plotly.min.js").read_bytes(), 6, mtime=0)
