"""A load run as Plotly figures, the same on the page and in its report."""

from collections.abc import Sequence

import plotly.graph_objects as go

from specdemo.bench.files import Chart
from specdemo.bench.load.conclusion import crossovers
from specdemo.bench.load.results import PLAIN, Load, Point
from specdemo.presentation.plotting import base_figure, colour, plain_line


def charts(result: Load) -> dict[str, Chart]:
    """Throughput against latency of every method, and speedups by the number of requests in flight."""
    found = result.points
    shown = {"latency": Chart("Throughput against latency", _throughput(found))}
    if any(point.speedup is not None for point in found):
        shown["speedup"] = Chart("Speedup over plain decoding by requests in flight", _speedups(found))
    return shown


def _throughput(found: Sequence[Point]) -> go.Figure:
    figure = base_figure(hovermode="closest")
    for method in dict.fromkeys(point.method for point in found):
        mine = [point for point in found if point.method == method]
        figure.add_scatter(
            x=[point.last.median for point in mine],
            y=[point.tokens_per_second.middle for point in mine],
            text=[str(point.level) for point in mine],
            name=method,
            mode="lines+markers+text",
            textposition="bottom right" if method == PLAIN else "top left",
            line={"color": _colour(found, method)},
            hovertemplate="%{text} in flight: %{y:.0f} tokens/s, last token after %{x:.2f} s",
        )
    figure.update_xaxes(title="median time to the last token, s")
    figure.update_yaxes(title="tokens/s of all requests")
    return figure


def _speedups(found: Sequence[Point]) -> go.Figure:
    figure = base_figure(hovermode="closest")
    levels = list(dict.fromkeys(str(point.level) for point in found))  # as names, or the first would be crowded
    for method in dict.fromkeys(point.method for point in found if point.speedup is not None):
        mine = [(point, point.speedup) for point in found if point.method == method and point.speedup is not None]
        known = all(speedup.known for _, speedup in mine)
        whiskers = {
            "type": "data",
            "array": [(speedup.high or 0) - speedup.middle for _, speedup in mine],
            "arrayminus": [speedup.middle - (speedup.low or 0) for _, speedup in mine],
            "thickness": 1.5,
            "color": _colour(found, method),
        }
        figure.add_scatter(
            x=[str(point.level) for point, _ in mine],
            y=[speedup.middle for _, speedup in mine],
            text=[str(speedup) for _, speedup in mine],
            name=method,
            mode="lines+markers",
            line={"color": _colour(found, method)},
            error_y=whiskers if known else None,
            hovertemplate="%{x} in flight: %{text}",
        )
    figure.update_xaxes(title="requests in flight", type="category", categoryorder="array", categoryarray=levels)
    figure.update_yaxes(title="speedup")
    plain_line(figure)
    for crossover in crossovers(found):
        above, below = levels.index(str(crossover.above)), levels.index(str(crossover.below))
        figure.add_vline(
            x=above + (below - above) * crossover.share,
            line={"color": _colour(found, crossover.method), "dash": "dot", "width": 1.5},
            annotation={"text": "crossover", "font": {"color": "var(--sd-mute)"}},
        )
    return figure


def _colour(found: Sequence[Point], method: str) -> str:
    if method == PLAIN:
        return "var(--sd-plain)"
    return colour([name for name in dict.fromkeys(point.method for point in found) if name != PLAIN].index(method))
