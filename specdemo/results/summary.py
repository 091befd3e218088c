"""The summary of a comparison, for page, terminal, reports and files: headline, sentences, figures and warnings."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from specdemo.errors import capitalised, listed
from specdemo.records import SIDES, Comparison, Run, Side
from specdemo.results import estimate, metrics
from specdemo.results.estimate import Direction, Interval, Speedup, Strength
from specdemo.results.metrics import FORMULAS
from specdemo.results.warnings import RunWarning, ceiling, warnings
from specdemo.results.words import agreement, divergence_reason, milliseconds, notes, number, percent, run_words
from specdemo.text import counted

_EXACT = 1.2  # within this factor of 1×, a second decimal matters
_APART = 1.1  # typical steps over the race's clocks; hand-set: readers notice a larger difference
_POSITIONS = 4  # listed in "acceptance by position"; the chart has all


@dataclass(frozen=True)
class Figure:
    """`plain` is empty if the figure applies only to speculation."""

    name: str
    plain: str
    speculative: str
    formula: str


@dataclass(frozen=True)
class Summary:
    """Strings are empty where there is nothing to say.

    `range` is the headline's interval in words, `refined` the number of repeats in it. `certain` has counts, which
    no disturbance of the clocks affects. `seconds` are for the same number of tokens, prefill excluded, in typical
    steps. `apart` explains why they differ from the race's clocks.
    """

    headline: str
    strength: Strength | Literal["none"]
    direction: Direction
    range: str
    refined: str
    sentence: str
    certain: str
    speedup: Speedup | None
    seconds: dict[Side, float]
    apart: str
    figures: tuple[Figure, ...]
    warnings: tuple[RunWarning, ...]
    why: tuple[str, ...]
    agreement: str
    made_by: str
    notes: tuple[str, ...]
    values: dict[str, Any] = field(repr=False)

    @property
    def line(self) -> str:
        return ", ".join(filter(None, (self.headline, self.range, self.refined))) + "."

    def to_dict(self) -> dict[str, Any]:
        fields = asdict(self)
        return {name: fields[name] for name in fields if name not in ("speedup", "values")} | self.values


def summarise(comparison: Comparison) -> Summary:
    speedup = estimate.of_comparison(comparison) if comparison.both_ran else None
    run_warnings = tuple(warnings(comparison, speedup))
    seconds = _seconds(comparison, speedup)
    strength: Strength | Literal["none"] = "none" if speedup is None else speedup.strength
    gained = any(step.accepted for step in comparison.speculative.rounds)
    if speedup is None:
        headline = "Too short to compare" if comparison.both_ran else "Nothing to compare"
    elif not gained and strength in ("uncertain", "noisy"):
        # a round that accepts nothing cannot be faster than a plain step, whatever the clocks say
        headline, strength = "Nothing gained", "even"
    else:
        headline = headline_of(speedup)
    return Summary(
        headline=headline,
        strength=strength,
        direction="same" if speedup is None else speedup.direction,
        range="" if speedup is None else between(speedup),
        refined=f"refined by {counted(len(comparison.repeats), 'repeat')}" if comparison.repeats else "",
        sentence=_sentence(comparison, speedup, seconds, gained=gained),
        certain=_certain(comparison, strength),
        speedup=speedup,
        seconds=seconds,
        apart=_apart(comparison, speedup, seconds),
        figures=tuple(figures(comparison, speedup)),
        warnings=run_warnings,
        why=tuple(filter(None, _why(comparison, speedup, run_warnings))),
        agreement=agreement(comparison),
        made_by=f"{comparison.pair.name} on {comparison.environment.device}: {run_words(comparison)}.",
        notes=tuple(notes(comparison)),
        values=_values(comparison, speedup),
    )


def _values(comparison: Comparison, speedup: Speedup | None) -> dict[str, Any]:
    run = comparison.speculative
    return {
        "speedup": None if speedup is None else speedup.middle,
        "speedup_interval": None if speedup is None else [speedup.low, speedup.high],
        "plain_steps_per_round": None if speedup is None else speedup.plain_steps_per_round,
        **({} if speedup is None else speedup.model_dump(exclude={"middle", "low", "high"})),
        "acceptance_rate": metrics.acceptance_rate(run),
        "mean_acceptance_length": metrics.mean_acceptance_length(run),
        "identical": metrics.identical(comparison) if comparison.both_ran else None,
        "first_divergence": metrics.first_divergence(comparison),
    }


# The headline and what stands beside it


def headline_of(speedup: Interval) -> str:
    match speedup.strength:
        case "clear":
            return _times_faster(speedup.middle)
        case "probable":
            return f"{capitalised(speedup.call)}, about {times(speedup.middle)}"
        case "uncertain" if 1 / (1 + estimate.LITTLE) < speedup.middle < 1 + estimate.LITTLE:
            return f"Not certain: about {speedup.middle:.2f}×"
        case "uncertain":
            return f"Not certain: perhaps {_times_faster(speedup.middle)}"
    return capitalised(speedup.call)


def times(speedup: float) -> str:
    """How many times as fast the faster side is; two decimals only where they matter."""
    factor = max(speedup, 1 / speedup)
    return f"{factor:.1f}×" if factor >= _EXACT else f"{factor:.2f}×"


def _times_faster(speedup: float) -> str:
    return f"{times(speedup)} {'faster' if speedup > 1 else 'slower'}"


def between(speedup: Interval) -> str:
    if speedup.strength == "noisy":
        return f"at most {times(speedup.high)} faster"
    if speedup.low >= 1:
        return f"between {times(speedup.low)} and {times(speedup.high)} faster"
    if speedup.high <= 1:
        return f"between {times(speedup.high)} and {times(speedup.low)} slower"
    return f"between {_times_faster(speedup.low)} and {_times_faster(speedup.high)}"


def _sentence(comparison: Comparison, speedup: Speedup | None, seconds: dict[Side, float], *, gained: bool) -> str:
    missing = list(comparison.failures.values())
    for side in SIDES:
        run = comparison.side(side)
        if run.finish_reason == "absent":
            missing += [f"There is no {side} server to compare with."]
        elif run.finish_reason == "cancelled" and not run.tokens:
            missing += [f"Stopped before the {side} side began."]
    if missing or speedup is None:
        return " ".join(missing) or "The answer is too short to compare; allow more tokens."
    if not gained:
        return _nothing_gained(comparison)
    length, steps = speedup.tokens_per_round, speedup.plain_steps_per_round
    if length is None or steps is None:
        plain, speculative = (f"{seconds[side]:.2f} s" for side in SIDES)
        return f"For the same tokens plain decoding took {plain}, speculative {speculative}."
    if speedup.strength == "noisy":
        return f"Each round writes {length:.1f} tokens; how long it takes could not be measured."
    conjunction = "and" if steps <= length else "but"
    noun = "plain step" if f"{steps:.2f}" == "1.00" else "plain steps"
    return f"Each round writes {length:.2f} tokens {conjunction} takes as long as {steps:.2f} {noun}."


def _nothing_gained(comparison: Comparison) -> str:
    drafter = comparison.settings.strategy.drafter
    if any(step.proposed != () for step in comparison.speculative.rounds):
        return f"None of {drafter.subject}'s proposals was accepted, so speculation only cost time."
    reason = "proposed nothing" if drafter.model else "found nothing to copy"
    return f"{capitalised(drafter.subject)} {reason}, so both sides decoded one token at a time."


def _certain(comparison: Comparison, strength: str) -> str:
    """Return the counts if the clocks may be wrong or leave the direction open."""
    load, passes = max(estimate.loads(comparison), default=0.0), metrics.passes_to(comparison)
    busy = load > estimate.BUSY
    if passes is None or not (comparison.environment.remote or busy or strength == "uncertain"):
        return ""
    counts = f"Independent of timing, the target ran {passes[1]} times instead of {passes[0]}."
    return f"Other programs took {percent(load)} of the processor. {counts}" if busy else counts


def _seconds(comparison: Comparison, speedup: Speedup | None) -> dict[Side, float]:
    """Return both sides' seconds for the same number of tokens, in typical steps: their ratio is the headline's."""
    if speedup is None or speedup.strength == "noisy":
        return _clocks(comparison)
    plain = metrics.common_tokens(comparison) * speedup.plain_step
    return {"plain": plain, "speculative": plain / speedup.middle}


def _clocks(comparison: Comparison) -> dict[Side, float]:
    """The same by the race's own clocks; empty if there are no tokens to compare."""
    tokens = metrics.common_tokens(comparison)
    return {side: metrics.seconds_to(comparison.side(side), tokens) for side in SIDES} if tokens else {}


def _apart(comparison: Comparison, speedup: Speedup | None, seconds: dict[Side, float]) -> str:
    """Explain why the headline and the bars differ from the race's own clocks, if they do."""
    if speedup is None or speedup.strength == "noisy":
        return ""
    clocks = _clocks(comparison)
    ratio = clocks["plain"] / clocks["speculative"]
    differences = [ratio / speedup.middle, *(clocks[side] / seconds[side] for side in SIDES)]
    if all(1 / _APART < difference < _APART for difference in differences):
        return ""
    raced = f"On the race's own clock: plain {clocks['plain']:.2f} s, speculative {clocks['speculative']:.2f} s"
    if ratio > estimate.limit_of(speedup.tokens_per_round):
        raced += ", which is impossible: other programs interfered"
    else:
        raced += f", so {_times_faster(ratio)}"
    basis = ["typical steps"]
    if comparison.repeats:
        basis.append(counted(len(comparison.repeats), "repeat"))
    if speedup.counts_expected:
        basis.append("step costs")
    return f"{raced}. Headline and bars rest on {listed(basis)}, which vary less."


# Why?


def _why(comparison: Comparison, speedup: Speedup | None, run_warnings: Sequence[RunWarning]) -> Iterator[str]:
    if speedup is not None:
        disturbed = any(warning.kind == "disturbed" for warning in run_warnings)
        yield _evidence(comparison, speedup, disturbed=disturbed)
        yield _round_words(comparison, speedup)
        yield _ceiling_words(comparison)
    for warning in run_warnings:
        yield warning.reason
    if comparison.both_ran:
        yield f"{capitalised(agreement(comparison))}. {divergence_reason(comparison)}".strip()


def _evidence(comparison: Comparison, speedup: Speedup, *, disturbed: bool) -> str:
    """Name the estimates behind the speedup, and give advice if they leave its direction open."""
    repeats = len(comparison.repeats)
    runs = f"the race and {counted(repeats, 'repeat')}" if repeats else "one race"
    measured = f"{speedup.measured:.2f}×" if speedup.measured else "more than a round can gain, and are ignored"
    expected = f"; counts and step costs give {speedup.expected:.2f}×" if speedup.counts_expected else ""
    unsure = speedup.strength in ("uncertain", "noisy", "probable") and not disturbed
    advice = " A longer answer gives a firmer result." if unsure else ""
    return f"{counted(speedup.steps, 'timed step')} of {runs} give {measured}{expected}. Estimate: {speedup}.{advice}"


def _round_words(comparison: Comparison, speedup: Speedup) -> str:
    """State the acceptance rate and the costs of a round."""
    sentences, parts = list[str](), list[str]()
    if (rate := metrics.acceptance_rate(comparison.speculative)) is not None:
        drafter = comparison.settings.strategy.drafter
        sentences.append(f"The target accepted {percent(rate)} of {drafter.subject}'s proposals.")
    if (costs := estimate.round_costs(comparison, speedup)) is not None:
        if costs.draft_step is not None:
            parts.append(f"a proposal costs {percent(costs.draft_step)} of a plain step")
        if costs.verify is not None and costs.lookahead is not None:
            steps = "about one step" if costs.verify < 1.1 else f"{costs.verify:.1f} steps"
            parts.append(f"checking {counted(costs.lookahead + 1, 'token')} costs {steps}")
        if parts:
            sentences.append(f"{capitalised(' and '.join(parts))}, {costs.source}.")
    return " ".join(sentences)


def _ceiling_words(comparison: Comparison) -> str:
    """State what a perfect draft would reach; empty if nothing, or if longer lookaheads ran than were measured."""
    best, costs = ceiling(comparison), comparison.costs
    longest = 0 if costs is None else len(costs.verify) - 1
    if best is None or best[0] <= 1 or longest < (comparison.settings.strategy.fixed_lookahead or 0):
        return ""
    return (
        f"On this machine a perfect draft, one whose proposals are all accepted, would reach {best[0]:.1f}× by "
        f"proposing {counted(best[1], 'token')} a round (up to {longest} were measured). Up to that speedup the "
        "draft is the limit, beyond it the machine."
    )


# Figures


def figures(comparison: Comparison, speedup: Speedup | None) -> Iterator[Figure]:
    """In an order in which they explain each other."""
    plain, speculative = comparison.plain, comparison.speculative

    def both(name: str, key: str, metric: Callable[[Run], float | None], show: Callable[..., str]) -> Figure:
        return Figure(name, show(metric(plain)), show(metric(speculative)), FORMULAS[key])

    yield Figure("speedup", "", _speedup(speedup), estimate.FORMULA)
    yield both("tokens/s", "tokens_per_second", metrics.tokens_per_second, number)
    yield both("time per output token (TPOT)", "time_per_token", metrics.time_per_token, milliseconds)
    yield both("time to first token (TTFT)", "prefill", metrics.prefill_seconds, milliseconds)
    rate = number(metrics.acceptance_rate(speculative))
    yield Figure("acceptance rate α", "", rate, FORMULAS["acceptance_rate"])
    yield both("mean acceptance length τ", "mean_acceptance_length", metrics.mean_acceptance_length, number)
    yield Figure("acceptance by position i", "", _positions(speculative), FORMULAS["per_position"])
    costs = estimate.round_costs(comparison, speedup)
    if costs is None:
        return
    d, v = ("d", "v") if costs.lookahead is None else (f"d({costs.lookahead})", f"v({costs.lookahead + 1})")
    parts = (
        ("draft cost c", costs.draft_step, "draft_cost"),
        (f"drafting {d}", costs.drafting, "drafting"),
        (f"verify cost {v}", costs.verify, "verify_cost"),
    )
    for name, cost, key in parts:
        if cost is not None:
            yield Figure(name, "", f"{cost:.3f}", f"{FORMULAS[key]}, {costs.source}")


def _speedup(speedup: Speedup | None) -> str:
    if speedup is None:
        return "–"
    return f"too noisy: {speedup.low:.2f}–{speedup.high:.2f}×" if speedup.strength == "noisy" else str(speedup)


def _positions(run: Run) -> str:
    """Acceptance by position, up to the last one that a round accepted."""
    rates = metrics.per_position_acceptance(run)
    shown = [percent(rate) for rate in rates if rate > 0][:_POSITIONS]
    if len(shown) < len(rates):
        shown.append(f"{'0 %' if not rates[len(shown)] else '…'} from {len(shown) + 1} on")
    return " · ".join(shown) or "–"
