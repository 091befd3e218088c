"""The figures of a finished comparison as HTML, each with its formula."""

from markupsafe import Markup

from specdemo.analysis.metrics import FORMULAS, verify_cost
from specdemo.presentation.explain import notes
from specdemo.presentation.figures import Figure, figures, number
from specdemo.records import Comparison, Costs

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
