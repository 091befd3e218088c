"""The summary of a comparison, which page, terminal, reports and files share: figures, sentences and warnings.

Counts do not depend on clocks. How sure the headline sounds follows from the interval.
"""

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
_APART = 1.1  # typical steps over the race's clocks; hand-set: from here on a reader asks why
_SOURCES = {True: "in this run", False: "measured separately"}
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

    `range` is the headline's interval in words, `refined` the number of repeats in it; `certain` has counts, which
    hold whatever disturbed the clocks. `seconds` are for the same number of tokens, prefill excluded, in typical
    steps; `apart` says why they differ from the race's clocks.
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
        words = asdict(self)
        return {name: words[name] for name in words if name not in ("speedup", "values")} | self.values


def summarise(comparison: Comparison) -> Summary:
    speedup = estimate.of_comparison(comparison) if comparison.both_ran else None
    warned = tuple(warnings(comparison, speedup))
    seconds = _seconds(comparison, speedup)
    strength: Strength | Literal["none"] = "none" if speedup is None else speedup.strength
    nothing = speedup is not None and not any(step.accepted for step in comparison.speculative.rounds)
    if speedup is None:
        headline = "Too short to compare" if comparison.both_ran else "Nothing to compare"
    elif nothing and strength in ("uncertain", "noisy"):
        # a round that accepts nothing cannot be faster than a plain step, whatever the clocks say
        headline, strength = "Nothing gained", "even"
    else:
        headline = call(speedup)
    return Summary(
        headline=headline,
        strength=strength,
        direction="same" if speedup is None else speedup.direction,
        range="" if speedup is None else between(speedup),
        refined=f"refined by {counted(len(comparison.repeats), 'repeat')}" if comparison.repeats else "",
        sentence=_sentence(comparison, speedup, seconds, nothing=nothing),
        certain=_certain(comparison, strength),
        speedup=speedup,
        seconds=seconds,
        apart=_apart(comparison, speedup, seconds),
        figures=tuple(figures(comparison, speedup)),
        warnings=warned,
        why=tuple(filter(None, _why(comparison, speedup, warned))),
        agreement=agreement(comparison),
        made_by=f"{comparison.pair.name} on {comparison.environment.device}: {run_words(comparison)}.",
        notes=tuple(notes(comparison)),
        values=_values(comparison, speedup),
    )


def _values(comparison: Comparison, speedup: Speedup | None) -> dict[str, Any]:
    run = comparison.speculative
    values: dict[str, Any] = {"speedup": None, "speedup_interval": None, "plain_steps_per_round": None}
    if speedup is not None:
        values |= speedup.model_dump(exclude={"middle", "low", "high"}) | {
            "speedup": speedup.middle,
            "speedup_interval": [speedup.low, speedup.high],
            "plain_steps_per_round": speedup.plain_steps_per_round,
        }
    return values | {
        "acceptance_rate": metrics.acceptance_rate(run),
        "mean_acceptance_length": metrics.mean_acceptance_length(run),
        "identical": metrics.identical(comparison) if comparison.both_ran else None,
        "first_divergence": metrics.first_divergence(comparison),
    }


# The headline and what stands beside it


def call(speedup: Interval) -> str:
    """The headline of a speedup, such as "1.4× faster"."""
    factor = times(speedup.middle)
    match speedup.strength:
        case "noisy":
            return "Too noisy to call"
        case "even":
            return "About even"
        case "clear":
            return f"{factor} {speedup.direction}"
        case "probable":
            return f"Probably {speedup.direction}, about {factor}"
    if 1 / (1 + estimate.LITTLE) < speedup.middle < 1 + estimate.LITTLE:
        return f"Not certain: about {speedup.middle:.2f}×"
    return f"Not certain: perhaps {factor} {_faster(speedup.middle)}"


def _faster(speedup: float) -> str:
    return "faster" if speedup > 1 else "slower"


def times(speedup: float) -> str:
    """How many times as fast the faster side is; two decimals only where they matter."""
    factor = max(speedup, 1 / speedup)
    return f"{factor:.1f}×" if factor >= _EXACT else f"{factor:.2f}×"


def between(speedup: Interval) -> str:
    if speedup.is_bound:
        return f"at most {times(speedup.high)} faster"
    if speedup.low >= 1:
        return f"between {times(speedup.low)} and {times(speedup.high)} faster"
    if speedup.high <= 1:
        return f"between {times(speedup.high)} and {times(speedup.low)} slower"
    return f"between {times(speedup.low)} slower and {times(speedup.high)} faster"


def _sentence(comparison: Comparison, speedup: Speedup | None, seconds: dict[Side, float], *, nothing: bool) -> str:
    missing = list(comparison.failures.values())
    for side in SIDES:
        run = comparison.side(side)
        if run.finish_reason == "absent":
            missing += [f"There is no {side} server to compare with."]
        elif run.finish_reason == "cancelled" and not run.tokens:
            missing += [f"Stopped before the {side} side began."]
    if missing or speedup is None:
        return " ".join(missing) or "The answer is too short to compare; allow more tokens."
    if nothing:
        return _nothing(comparison)
    length, steps = speedup.tokens_per_round, speedup.plain_steps_per_round
    if length is None or steps is None:
        plain, speculative = (f"{seconds[side]:.2f} s" for side in SIDES)
        return f"For the same tokens plain decoding took {plain}, speculative {speculative}."
    if speedup.strength == "noisy":
        return f"Each round writes {length:.1f} tokens; how long it takes could not be measured."
    conjunction = "and" if steps <= length else "but"
    noun = "plain step" if f"{steps:.2f}" == "1.00" else "plain steps"
    return f"Each round writes {length:.2f} tokens {conjunction} takes as long as {steps:.2f} {noun}."


def _nothing(comparison: Comparison) -> str:
    drafter = comparison.settings.strategy.drafter
    if any(step.proposed is None or step.proposed for step in comparison.speculative.rounds):
        return f"None of {drafter.subject}'s proposals was accepted, so speculation only cost time."
    what = "proposed nothing" if drafter.model else "found nothing to copy"
    return f"{capitalised(drafter.subject)} {what}, so both sides decoded one token at a time."


def _certain(comparison: Comparison, strength: str) -> str:
    """Return the counts, which hold whatever the clocks say, unless the clocks suffice."""
    load, passes = max(estimate.loads(comparison), default=0.0), metrics.passes_to(comparison)
    busy = load > estimate.BUSY
    if passes is None or not (comparison.environment.remote or busy or strength == "uncertain"):
        return ""
    counts = f"Independent of timing, the target ran {passes[1]} times instead of {passes[0]}."
    return f"Other programs took {percent(load)} of the processor. {counts}" if busy else counts


def _seconds(comparison: Comparison, speedup: Speedup | None) -> dict[Side, float]:
    """Return both sides' seconds for the same number of tokens, in typical steps: their ratio is the headline's."""
    tokens = metrics.common_tokens(comparison)
    if speedup is not None and speedup.strength != "noisy":
        plain = tokens * speedup.plain_step
        return {"plain": plain, "speculative": plain / speedup.middle}
    return _clocks(comparison) if tokens else {}


def _clocks(comparison: Comparison) -> dict[Side, float]:
    """Return both sides' seconds for the same number of tokens, by the race's own clocks."""
    tokens = metrics.common_tokens(comparison)
    return {side: metrics.seconds_to(comparison.side(side), tokens) for side in SIDES}


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
    if ratio > speedup.most:
        raced += ", which is impossible: other programs interfered"
    else:
        raced += f", so {times(ratio)} {_faster(ratio)}"
    basis = ["typical steps"]
    basis += [counted(len(comparison.repeats), "repeat")] if comparison.repeats else []
    basis += ["step costs"] if speedup.counts_expected else []
    return f"{raced}. Headline and bars rest on {listed(basis)}, which vary less."


# Why?


def _why(comparison: Comparison, speedup: Speedup | None, warned: Sequence[RunWarning]) -> Iterator[str]:
    if speedup is not None:
        yield _evidence(comparison, speedup, disturbed=any(warning.kind == "disturbed" for warning in warned))
        yield _makeup(comparison, speedup)
        best, longest = ceiling(comparison), len(comparison.costs.verify) - 1 if comparison.costs else 0
        if best is not None and best[0] > 1 and longest >= (comparison.settings.strategy.fixed_lookahead or 0):
            yield (
                "On this machine a perfect draft, one whose proposals are all accepted, would reach "
                f"{best[0]:.1f}× by proposing {counted(best[1], 'token')} a round (up to {longest} were "
                "measured). Up to that speedup the draft is the limit, beyond it the machine."
            )
    for warning in warned:
        yield warning.reason
    if comparison.both_ran:
        yield f"{capitalised(agreement(comparison))}. {divergence_reason(comparison)}".strip()


def _evidence(comparison: Comparison, speedup: Speedup, *, disturbed: bool) -> str:
    """Name the estimates behind the speedup, and give advice if they leave its side open."""
    repeats = len(comparison.repeats)
    runs = f"the race and {counted(repeats, 'repeat')}" if repeats else "one race"
    measured = (
        "more than a round can gain, and are ignored" if speedup.measured is None else f"{speedup.measured:.2f}×"
    )
    expected = f"; counts and step costs give {speedup.expected:.2f}×" if speedup.counts_expected else ""
    unsure = speedup.strength in ("uncertain", "noisy", "probable") and not disturbed
    advice = " A longer answer gives a firmer result." if unsure else ""
    return f"{counted(speedup.steps, 'timed step')} of {runs} give {measured}{expected}. Estimate: {speedup}.{advice}"


def _makeup(comparison: Comparison, speedup: Speedup) -> str:
    """Name the acceptance rate and the costs of a round."""
    sentences, parts = list[str](), list[str]()
    if (rate := metrics.acceptance_rate(comparison.speculative)) is not None:
        drafter = comparison.settings.strategy.drafter
        sentences.append(f"The target accepted {percent(rate)} of {drafter.subject}'s proposals.")
    if (costs := estimate.round_costs(comparison, speedup)) is not None:
        lookahead = _lookahead(comparison)
        if costs.draft_step is not None:
            parts.append(f"a proposal costs {percent(costs.draft_step)} of a plain step")
        if costs.verify is not None and lookahead is not None:
            steps = "about one step" if costs.verify < 1.1 else f"{costs.verify:.1f} steps"
            parts.append(f"checking {counted(lookahead + 1, 'token')} costs {steps}")
        if parts:
            sentences.append(f"{capitalised(' and '.join(parts))}, {_SOURCES[costs.own]}.")
    return " ".join(sentences)


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
    if (costs := estimate.round_costs(comparison, speedup)) is not None:
        lookahead = _lookahead(comparison)
        d, v = ("d", "v") if lookahead is None else (f"d({lookahead})", f"v({lookahead + 1})")
        names = {"draft_cost": "draft cost c", "drafting": f"drafting {d}", "verify_cost": f"verify cost {v}"}
        for (key, name), cost in zip(names.items(), (costs.draft_step, costs.drafting, costs.verify), strict=True):
            if cost is not None:
                yield Figure(name, "", f"{cost:.3f}", f"{FORMULAS[key]}, {_SOURCES[costs.own]}")


def _lookahead(comparison: Comparison) -> int | None:
    """None if rounds propose different numbers of tokens."""
    return None if comparison.moves else comparison.settings.strategy.fixed_lookahead


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
