"""A benchmark as Plotly figures, the same on the page and in its report."""

from collections.abc import Callable
from html import escape
from typing import Any

import plotly.graph_objects as go

from specdemo.analysis import metrics
from specdemo.bench.files import Chart
from specdemo.bench.results import Bench, Cell, cells
from specdemo.presentation.plotting import base_figure, colour, plain_line


def charts(result: Bench) -> dict[str, Chart]:
    """Speedup and mean accepted length of every method on every task; what longer passes cost, if it was measured."""
    found = cells(result)
    outputs = "outputs identical" if all(cell.identical for cell in found) else "outputs not always identical"
    shown = {
        "speedup": Chart("Speedup over plain decoding" + (f", {outputs}" if found else ""), _speedups(found)),
        "length": Chart("Mean accepted length τ", _lengths(found)),
    }
    if any(facts.costs is not None for facts in result.engines.values()):
        shown["passes"] = Chart("Cost of a target pass over n tokens, v(n)", _passes(result))
    return shown


def _speedups(found: list[Cell]) -> go.Figure:
    def bars(mine: list[Cell]) -> dict[str, Any]:
        spread = [cell.deviation for cell in mine if cell.deviation is not None]
        whiskers = {"type": "data", "array": spread, "thickness": 1.5, "color": "var(--sd-ink)"}
        return {
            "y": [cell.mean for cell in mine],
            "error_y": whiskers if len(spread) == len(mine) else None,  # not of no height
            "hovertext": ["outputs identical" if cell.identical else "outputs differ" for cell in mine],
        }

    return _by_task(found, "speedup", bars)


def _lengths(found: list[Cell]) -> go.Figure:
    return _by_task(found, "τ", lambda mine: {"y": [cell.mean_accepted_length for cell in mine]})


def _by_task(found: list[Cell], title: str, bars: Callable[[list[Cell]], dict[str, Any]]) -> go.Figure:
    """Bars of every method, grouped by task, with a line where plain decoding is."""
    figure = base_figure(barmode="group", hovermode="closest")
    for number, strategy in enumerate(dict.fromkeys((cell.engine, cell.method) for cell in found)):
        mine = [cell for cell in found if (cell.engine, cell.method) == strategy]
        tasks = [escape(cell.task, quote=False) for cell in mine]  # Plotly takes some markup for its own
        figure.add_bar(x=tasks, name=" ".join(strategy), marker_color=colour(number), **bars(mine))
    plain_line(figure)
    figure.update_yaxes(title=title)
    return figure


def _passes(result: Bench) -> go.Figure:
    figure = base_figure()
    measured = {name: facts.costs for name, facts in result.engines.items() if facts.costs is not None}
    for number, (engine, costs) in enumerate(measured.items()):
        lengths = list(range(1, len(costs.verify) + 1))
        figure.add_scatter(
            x=lengths,
            y=[metrics.verify_cost(costs, n) for n in lengths],
            name=engine,
            mode="lines+markers",
            line={"color": colour(number)},
            hovertemplate="%{y:.2f}",
        )
    figure.update_xaxes(title="tokens")
    figure.update_yaxes(title="v(n)")
    return figure
