"""Figures of a comparison, each with name, values of both sides and formula; and as tiles on the page."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from markupsafe import Markup

from specdemo import estimate, metrics
from specdemo.estimate import Summary, accepted_per_round, race_of
from specdemo.metrics import FORMULAS, verify_cost
from specdemo.presentation.explain import notes
from specdemo.records import Comparison, Costs, Run

_POSITIONS = 16
SPEED_COLUMNS = ("speedup", "α", "τ")


class Figure(NamedTuple):
    """One row. `plain` is empty if the figure applies only to speculation."""

    name: str
    plain: str
    speculative: str
    formula: str


def figures(comparison: Comparison) -> Iterator[Figure]:
    """Yield the figures in an order in which they explain each other."""
    plain, speculative = comparison.plain, comparison.speculative
    formulas = metrics.FORMULAS
    yield _speedup(comparison)
    yield Figure(
        "time per output token (TPOT)",
        milliseconds(metrics.time_per_token(plain)),
        milliseconds(metrics.time_per_token(speculative)),
        formulas["time_per_token"],
    )
    yield Figure(
        "time to first token (TTFT)",
        milliseconds(metrics.prefill_seconds(plain)),
        milliseconds(metrics.prefill_seconds(speculative)),
        formulas["prefill"],
    )
    yield Figure("acceptance rate α", "", number(metrics.acceptance_rate(speculative)), formulas["acceptance_rate"])
    yield Figure(
        "mean acceptance length τ",
        number(metrics.mean_accepted_length(plain)),
        number(metrics.mean_accepted_length(speculative)),
        formulas["mean_accepted_length"],
    )
    yield Figure("acceptance by position i", "", _positions(speculative), formulas["per_position"])
    yield Figure("rounds by tokens accepted", "", _histogram(comparison), formulas["accepted"])
    yield from _cost_figures(comparison)


def speed_cells(part: Summary) -> tuple[str, str, str]:
    """Return the cells of a table with `SPEED_COLUMNS`."""
    return str(part.speedup), number(part.acceptance_rate), number(part.mean_accepted_length)


def _speedup(comparison: Comparison) -> Figure:
    """Return the estimated speedup with its interval."""
    speedup = estimate.of_comparison(comparison)
    formula = f"{metrics.FORMULAS['speedup']}; {estimate.FORMULA}"
    return Figure("speedup", "", "–" if speedup is None else str(speedup), formula)


def _positions(run: Run) -> str:
    """Format acceptance by position, up to the last position that a round accepted."""
    rates = metrics.per_position_acceptance(run)
    shown = [percent(rate) for rate in rates if rate > 0][:_POSITIONS]
    if len(shown) < len(rates):
        shown.append(f"{'0 %' if not rates[len(shown)] else '…'} from {len(shown) + 1} on")
    return " · ".join(shown) or "–"


def _histogram(comparison: Comparison) -> str:
    """Format the rounds of the race that accepted 0, 1, 2, … proposals; a dash if rounds are unknown."""
    race = race_of(comparison)
    counts = {} if race is None else accepted_per_round([race])
    return " · ".join(f"{accepted}: {rounds}" for accepted, rounds in counts.items()) or "–"


def _cost_figures(comparison: Comparison) -> Iterator[Figure]:
    costs = comparison.costs
    if costs is None:
        return
    formulas = metrics.FORMULAS
    calibrated = "measured apart from this run: "
    if comparison.settings.strategy.drafter.model:
        yield Figure("draft cost c", "", number(metrics.draft_cost(costs)), calibrated + formulas["draft_cost"])
    lookahead = comparison.settings.strategy.fixed_lookahead
    if lookahead is not None:
        tokens = lookahead + 1
        verify = number(metrics.verify_cost(costs, tokens))
        yield Figure(f"verify cost v({tokens})", "", verify, calibrated + formulas["verify_cost"])


def number(value: float | None, unit: str = "") -> str:
    """Format a number with two decimals; a dash if unknown."""
    return "–" if value is None else f"{value:.2f}{unit}"


def percent(share: float) -> str:
    """Format a share from 0 to 1 in whole per cent."""
    return f"{share * 100:.0f} %"


def parameters(count: int) -> str:
    """Format a parameter count, such as 1.1M or 7.0B."""
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"


def milliseconds(seconds: float | None) -> str:
    """Format seconds as milliseconds with two decimals; a dash if unknown."""
    return "–" if seconds is None else f"{seconds * 1000:.2f} ms"


_TERMS = (
    ("τ", "mean_accepted_length", "mean acceptance length, the tokens that a round commits on average"),
    ("α", "acceptance_rate", "acceptance rate, the share of proposals that the target accepts"),
    ("speedup", "speedup", "how many times as fast the speculative side decodes"),
)
_FIGURE = Markup("<div{wide}><dt>{name}</dt><dd><b>{value}</b>{plain}<small>{formula}</small></dd></div>")
_WIDE = 12  # characters that fit one column
_PLAIN = Markup("<span>plain {}</span>")
_COSTS = Markup("<details><summary>v(n) for n = 1 … {last}</summary><p>{values}</p><p>{formula}</p></details>")


def figures_html(comparison: Comparison) -> str:
    """Return a definition list of all figures, the source of the proposals, and the measured step costs."""
    tiles = Markup("").join(_tile(figure) for figure in figures(comparison))
    remarks = Markup("").join(Markup("<p>{}</p>").format(note) for note in notes(comparison))
    costs = Markup("") if comparison.costs is None else _costs(comparison.costs)
    return str(Markup("<dl>{}</dl>{}{}").format(tiles, remarks, costs))


def grounds_html(paragraphs: Iterable[str]) -> str:
    """Return the evidence for a conclusion: paragraphs, then each term once, with its formula on hover."""
    text = Markup("").join(map(_paragraph, filter(None, paragraphs)))
    terms = Markup(" · ").join(
        Markup('<dfn title="{}">{}</dfn>: {}').format(FORMULAS[name], term, words) for term, name, words in _TERMS
    )
    return str(text + Markup('<p class="terms">{}</p>').format(terms))


def _paragraph(text: str) -> Markup:
    """Return sentences, followed by commands on lines of their own."""
    sentences, *lines = text.splitlines()
    commands = Markup("").join(Markup("<br><code>{}</code>").format(line) for line in lines)
    return Markup("<p>{}{}</p>").format(sentences, commands)


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
