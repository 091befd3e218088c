"""The summary of a comparison, for page, terminal, reports and files: headline, sentences, figures and warnings."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from specdemo.capabilities import ENGINES
from specdemo.errors import capitalised
from specdemo.records import SIDES, Comparison, Side
from specdemo.results import estimate, metrics
from specdemo.results.agreement import agreement, divergence_reason
from specdemo.results.estimate import Direction, Speedup, State
from specdemo.results.metrics import Metric, figures
from specdemo.results.warnings import RunWarning, find_warnings, known_ceiling
from specdemo.results.words import notes, run_words, strategy_words
from specdemo.text import counted, percent

_TWO_DECIMALS_BELOW = 1.2  # within this factor of 1×, a second decimal matters


@dataclass(frozen=True)
class Summary:
    """Strings are empty where there is nothing to say.

    `headline` is what the clocks showed in all `runs`, which `pooled` names; `expectation`, what a quiet run would
    show; `certain` has counts, which no disturbance of the clocks affects. `seconds` are means over the runs.
    """

    headline: str
    state: State | Literal["none"]
    direction: Direction
    expectation: str
    pooled: str
    runs: int
    sentence: str
    certain: str
    speedup: Speedup | None
    seconds: dict[Side, float]
    figures: tuple[Metric, ...]
    warnings: tuple[RunWarning, ...]
    why: tuple[str, ...]
    agreement: str
    made_by: str
    notes: tuple[str, ...]
    values: dict[str, Any] = field(repr=False)

    @property
    def line(self) -> str:
        return f"{f'{self.headline} {self.pooled}'.strip()}. {self.expectation}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        fields = asdict(self)
        return {name: fields[name] for name in fields if name not in ("speedup", "values")} | self.values


def summarise(comparison: Comparison) -> Summary:
    speedup = estimate.of_comparison(comparison) if comparison.both_ran else None
    run_warnings = tuple(find_warnings(comparison, speedup))
    steps = None if speedup is None else speedup.plain_steps_per_round
    seconds = _seconds(comparison)
    state: State | Literal["none"] = "none" if speedup is None else speedup.state
    models = comparison.pair if comparison.settings.strategy.drafter.model else comparison.pair.target
    nothing = "Too short to compare" if comparison.both_ran else "Nothing to compare"
    return Summary(
        headline=nothing if speedup is None else headline_of(speedup.ratio),
        state=state,
        direction="same" if speedup is None else speedup.direction,
        expectation="" if speedup is None else expectation(speedup),
        pooled=_pooled(comparison, speedup),
        runs=1 + len(comparison.repeats),
        sentence=_sentence(comparison, speedup, seconds),
        certain=_certain(comparison, state),
        speedup=speedup,
        seconds=seconds,
        figures=tuple(figures(comparison, str(speedup or "–"), steps)),
        warnings=run_warnings,
        why=tuple(filter(None, _why(comparison, speedup, run_warnings))),
        agreement=agreement(comparison),
        made_by=f"{models.name} on {comparison.environment.device}: {run_words(comparison)}.",
        notes=tuple(notes(comparison)),
        values=_values(comparison, speedup) | {"plain_steps_per_round": steps},
    )


def _values(comparison: Comparison, speedup: Speedup | None) -> dict[str, Any]:
    run = comparison.speculative
    return {
        "speedup": None if speedup is None else speedup.ratio,
        "speedup_interval": None if speedup is None else [speedup.low, speedup.high],
        "acceptance_rate": metrics.acceptance_rate(run),
        "mean_acceptance_length": metrics.mean_acceptance_length(run),
        "identical": metrics.identical(comparison) if comparison.both_ran else None,
        "first_divergence": metrics.first_divergence(comparison),
        "strategy": strategy_words(comparison, short=True),
    }


# The headline and what stands beside it


def headline_of(ratio: float) -> str:
    """Such as "1.5× faster": the ratio of the clocks, and nothing else."""
    if times(ratio) == "1.00×":
        return "Equally fast"
    return f"{times(ratio)} {'slower' if ratio < 1 else 'faster'}"


def times(ratio: float, *, exact: bool = False) -> str:
    """How many times as fast the faster side is; two decimals only where they matter."""
    factor = max(ratio, 1 / ratio)
    return f"{factor:.2f}×" if exact or round(factor, 2) < _TWO_DECIMALS_BELOW else f"{factor:.1f}×"


def expectation(speedup: Speedup) -> str:
    """Say what to expect of a quiet run of this machine, in one sentence for each state."""
    expected = f"expect {_between(speedup)}"
    busy = f"Other programs took {percent(speedup.other_load or 0.0)} of the processor"
    match speedup.state:
        case "disturbed":
            return f"{busy}, so it is unclear which side is faster: {expected} without them."
        case "close":
            return f"It is unclear which side is faster: {expected}."
    return f"{busy}: {expected} without them." if speedup.busy else f"{capitalised(expected)}."


def _between(speedup: Speedup) -> str:
    """Both ends of the interval in words, with the direction once if it is the same."""
    ends = sorted((speedup.low, speedup.high), key=lambda end: abs(math.log(end)))
    near, far = (times(end, exact=times(ends[0]) == times(ends[1])) for end in ends)
    direction = "faster" if ends[1] > 1 else "slower"
    if near == "1.00×":
        return f"up to {far} {direction}"
    if speedup.low < 1 < speedup.high:
        return f"{times(speedup.low)} slower to {times(speedup.high)} faster"
    return f"{near} to {far} {direction}"


def _pooled(comparison: Comparison, speedup: Speedup | None) -> str:
    """Name the runs behind the headline, and the race's own ratio if it looks different."""
    if speedup is None:
        return ""
    if not comparison.repeats:
        return "in this race"
    runs = f"in the race and {counted(len(comparison.repeats), 'repeat')}"
    clocks = metrics.clocks(comparison)
    raced = headline_of(clocks["plain"] / clocks["speculative"])
    return runs if raced == headline_of(speedup.ratio) else f"{runs}; {raced.lower()} in the race alone"


def _sentence(comparison: Comparison, speedup: Speedup | None, seconds: dict[Side, float]) -> str:
    missing = list(comparison.failures.values())
    for side in SIDES:
        run = comparison.side(side)
        if run.finish_reason == "absent":
            missing += [f"There is no {side} server to compare with."]
        elif run.finish_reason == "cancelled" and not run.tokens:
            missing += [f"Stopped before the {side} side began."]
    if missing or speedup is None:
        return " ".join(missing) or "The answer is too short to compare; allow more tokens."
    if metrics.any_accepted(comparison.speculative) is False:
        return _nothing_accepted(comparison)
    length, steps = speedup.tokens_per_round, speedup.plain_steps_per_round
    if length is None or steps is None:
        plain, speculative = (f"{seconds[side]:.2f} s" for side in SIDES)
        return f"For the same tokens plain decoding took {plain}, speculative {speculative}."
    return f"Each round writes {length:.2f} tokens, plain decoding {steps:.2f} in that time."


def _nothing_accepted(comparison: Comparison) -> str:
    drafter = comparison.settings.strategy.drafter
    if any(step.proposed != () for step in comparison.speculative.rounds):
        return f"None of {drafter.subject}'s proposals was accepted, so speculation only cost time."
    reason = "proposed nothing" if drafter.model else "found nothing to copy"
    return f"{capitalised(drafter.subject)} {reason}, so both sides decoded one token at a time."


def _certain(comparison: Comparison, state: str) -> str:
    """Return the counts if the clocks may be wrong or leave the direction open."""
    passes, engine = metrics.passes_to(comparison), ENGINES[comparison.settings.engine]
    if passes is None or passes[0] == passes[1] or (engine.local and state == "clear"):
        return ""
    return f"Independent of timing, the target ran {passes[1]} times instead of {passes[0]}."


def _seconds(comparison: Comparison) -> dict[Side, float]:
    """Both sides' seconds for the same number of tokens, as means of the race and its repeats: their ratio is the
    headline's. Empty if there are none to compare.
    """
    clocks, runs = metrics.clocks(comparison), 1 + len(comparison.repeats)
    if not clocks:
        return {}
    plain = clocks["plain"] + sum(trial.plain_seconds for trial in comparison.repeats)
    speculative = clocks["speculative"] + sum(trial.seconds for trial in comparison.repeats)
    return {"plain": plain / runs, "speculative": speculative / runs}


# Why?


def _why(comparison: Comparison, speedup: Speedup | None, run_warnings: Sequence[RunWarning]) -> Iterator[str]:
    if speedup is not None:
        yield _evidence(comparison, speedup)
        yield _round_words(comparison, speedup)
        yield _ceiling_words(comparison)
    for warning in run_warnings:
        yield warning.reason
    if comparison.both_ran:
        yield f"{capitalised(agreement(comparison))}. {divergence_reason(comparison)}".strip()


def _evidence(comparison: Comparison, speedup: Speedup) -> str:
    """State both sides' seconds, and what would narrow the interval."""
    tokens, seconds, repeats = metrics.common_tokens(comparison), _seconds(comparison), len(comparison.repeats)
    runs = f", averaged over the race and {counted(repeats, 'repeat')}" if repeats else ""
    took = (
        f"For the same {counted(tokens, 'token')} plain decoding took {seconds['plain']:.2f} s and speculative "
        f"{seconds['speculative']:.2f} s{runs}: {speedup}."
    )
    if speedup.width_from == "runs":
        quieter = "A quieter machine, a" if speedup.busy else "A"
        return f"{took} {quieter} longer answer or more repeats would narrow the interval."
    return f"{took} More repeats would not narrow the interval: results differ that much between processes."


def _round_words(comparison: Comparison, speedup: Speedup) -> str:
    """State the acceptance rate and the costs of a round."""
    sentences, parts = list[str](), list[str]()
    if (rate := metrics.acceptance_rate(comparison.speculative)) is not None:
        drafter = comparison.settings.strategy.drafter
        sentences.append(f"The target accepted {percent(rate)} of {drafter.subject}'s proposals.")
    if (costs := metrics.round_costs(comparison, speedup.plain_steps_per_round)) is not None:
        if costs.draft_step is not None:
            parts.append(f"a proposal costs {percent(costs.draft_step)} of writing a token plainly")
        if costs.verify is not None and costs.lookahead is not None:
            steps = "about as much" if costs.verify < 1.1 else f"{costs.verify:.1f} times as much"
            parts.append(f"checking {counted(costs.lookahead + 1, 'token')} costs {steps}")
        if parts:
            sentences.append(f"{capitalised(' and '.join(parts))}, {costs.source}.")
    return " ".join(sentences)


def _ceiling_words(comparison: Comparison) -> str:
    """State what a perfect draft would reach; empty if nothing, or if longer lookaheads ran than were measured."""
    best, costs = known_ceiling(comparison), comparison.costs
    longest = 0 if costs is None else len(costs.verify) - 1
    if best is None or best[0] <= 1 or longest < (comparison.settings.strategy.fixed_lookahead or 0):
        return ""
    return (
        f"On this machine a perfect draft, one whose proposals are all accepted, would reach {best[0]:.1f}× by "
        f"proposing {counted(best[1], 'token')} a round (up to {longest} were measured). Up to that speedup the "
        "draft is the limit, beyond it the machine."
    )
