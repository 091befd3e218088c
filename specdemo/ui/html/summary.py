"""The figures of a finished comparison as HTML, each with its formula."""

from collections.abc import Iterable

from markupsafe import Markup

from specdemo.analysis.metrics import FORMULAS, verify_cost
from specdemo.presentation.explain import notes
from specdemo.presentation.figures import Figure, figures, number
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
