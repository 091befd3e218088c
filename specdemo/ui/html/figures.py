"""A run in figures: tiles with their formulas, what stands behind its verdict, and the two live charts.

The charts come without data. The page extends their traces point by point while it plays, which keeps the reader's
zoom and allocates nothing; their layout and the order of their traces are defined here.
"""

import json
from collections.abc import Iterable
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup

from specdemo.analysis.metrics import FORMULAS, verify_cost
from specdemo.presentation.explain import notes
from specdemo.presentation.figures import Figure, figures, number
from specdemo.presentation.plotting import AXIS, base_figure
from specdemo.records import Comparison, Costs

_TERMS = (
    ("τ", "mean_accepted_length", "tokens that a round adds, on average"),
    ("α", "acceptance_rate", "share of the guesses that are kept"),
    ("speedup", "speedup", "how much sooner the speculative side is done"),
)
_FIGURE = Markup("<div{wide}><dt>{name}</dt><dd><b>{value}</b>{plain}<small>{formula}</small></dd></div>")
_WIDE = 12  # characters that still fit one column
_PLAIN = Markup("<span>plain {}</span>")
_COSTS = Markup("<details><summary>v(n) for n = 1 … {last}</summary><p>{values}</p><p>{formula}</p></details>")


def figures_html(comparison: Comparison) -> str:
    """A definition list of all figures, how the proposals are known, and the measured step costs."""
    tiles = Markup("").join(_tile(figure) for figure in figures(comparison))
    remarks = Markup("").join(Markup("<p>{}</p>").format(note) for note in notes(comparison))
    costs = Markup("") if comparison.costs is None else _costs(comparison.costs)
    return str(Markup("<dl>{}</dl>{}{}").format(tiles, remarks, costs))


def grounds_html(paragraphs: Iterable[str]) -> str:
    """What stands behind a verdict: paragraphs, then each term once, with its formula on hover."""
    text = Markup("").join(Markup("<p>{}</p>").format(line) for line in paragraphs if line)
    terms = Markup(" · ").join(
        Markup('<dfn title="{}">{}</dfn>: {}').format(FORMULAS[name], term, words) for term, name, words in _TERMS
    )
    return str(text + Markup('<p class="terms">{}</p>').format(terms))


def _tile(figure: Figure) -> Markup:
    plain = _PLAIN.format(figure.plain) if figure.plain else ""
    wide = Markup(' class="wide"') if len(figure.speculative) > _WIDE else ""
    return _FIGURE.format(wide=wide, name=figure.name, value=figure.speculative, plain=plain, formula=figure.formula)


def _costs(costs: Costs) -> Markup:
    tokens = range(1, len(costs.verify) + 1)
    values = " · ".join(number(verify_cost(costs, n)) for n in tokens)
    return _COSTS.format(
        last=len(tokens), values=values, formula=f"v(n) = {FORMULAS['verify_cost']}, measured apart from this run"
    )


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
