"""One summary of a comparison, for page, terminal, reports and files: every figure and sentence stands here, once.

What is certain comes first: counts do not depend on clocks. The headline's three strengths follow from the interval.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from specdemo import estimate, metrics
from specdemo.errors import capitalised, listed
from specdemo.estimate import Direction, Interval, Speedup, Strength
from specdemo.metrics import FORMULAS
from specdemo.records import SIDES, Comparison, Outcome, Run, Side
from specdemo.text import counted
from specdemo.words import agreement, divergence_reason, fault, notes, run_words

_BUSY = 0.2  # of the processor's time; hand-set: below it the interval says enough, and no one need close anything
_EXACT = 1.2  # within this factor of 1×, a second decimal matters
_APART = 1.1  # headline over the ratio of the seconds beside it; hand-set: from here on a reader asks why
_HELD = 0.05  # of a side's seconds; hand-set: single slow steps of less are no reason
_SLOW = 0.3  # plain steps; hand-set: a draft step below this is not to blame for a lack of gain
_POSITIONS = 16  # of a proposal whose acceptance is listed, as many as the longest lookahead has


@dataclass(frozen=True)
class RunWarning:
    """`reason` is in sentences; `chip` says it in a few words."""

    kind: str
    reason: str
    chip: str


@dataclass(frozen=True)
class Figure:
    """`plain` is empty if the figure applies only to speculation."""

    name: str
    plain: str
    speculative: str
    formula: str


@dataclass(frozen=True)
class Summary:
    """What there is to say about a comparison. Empty strings mean there is nothing to say.

    `range` is the headline's interval in a clause, `refined` how many repeats it includes; `certain` holds whatever
    disturbed the clocks. `seconds` are those of the race itself, for the same number of tokens without the prefill;
    `apart` says why the headline differs from them.
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
    speedup = estimate.of_comparison(comparison) if comparison.both else None
    warned = tuple(warnings(comparison, speedup))
    tokens = metrics.common_tokens(comparison)
    seconds = {side: metrics.seconds_to(comparison.side(side), tokens) for side in SIDES} if tokens else {}
    nothing = speedup is not None and not any(step.accepted for step in comparison.speculative.rounds)
    strength: Strength | Literal["none"] = "none" if speedup is None else speedup.strength
    if nothing and strength == "noisy":
        strength = "even"  # a round that accepts nothing cannot be faster than a plain step, whatever the clocks say
    return Summary(
        headline=_headline(comparison, speedup, nothing=nothing),
        strength=strength,
        direction="same" if speedup is None else speedup.direction,
        range="" if speedup is None else between(speedup),
        refined=f"refined by {counted(len(comparison.repeats), 'repeat')}" if comparison.repeats else "",
        sentence=_sentence(comparison, speedup, seconds, nothing=nothing),
        certain=_certain(comparison),
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
    found = speedup.model_dump(exclude={"middle", "low", "high"}) if speedup is not None else {}
    return {
        "speedup": speedup and speedup.middle,
        "speedup_interval": speedup and [speedup.low, speedup.high],
        **found,
        "plain_steps_per_round": speedup and speedup.plain_steps_per_round,
        "acceptance_rate": metrics.acceptance_rate(run),
        "mean_acceptance_length": metrics.mean_acceptance_length(run),
        "identical": metrics.identical(comparison) if comparison.both else None,
        "first_divergence": metrics.first_divergence(comparison),
    }


# The headline and what stands beside it


def call(speedup: Interval) -> str:
    """A few words, such as "1.4× faster"."""
    if speedup.strength == "noisy":
        return "Too noisy to call"
    if speedup.strength == "even":
        return "About even"
    how = times(speedup.middle)
    clear = speedup.strength == "clear"
    return f"{how} {speedup.direction}" if clear else f"Probably {speedup.direction}, about {how}"


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


def _headline(comparison: Comparison, speedup: Speedup | None, *, nothing: bool) -> str:
    if not comparison.both:
        return "Nothing to compare"
    if speedup is None:
        return "Too short to compare"
    return "Nothing gained" if nothing and speedup.strength == "noisy" else call(speedup)


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
    digits = 1 if max(speedup.middle, 1 / speedup.middle) >= _EXACT else 2
    joint = "and" if steps <= length else "but"
    what = "normal step" if f"{steps:.{digits}f}" == f"{1:.{digits}f}" else "normal steps"
    return f"Each round writes {length:.{digits}f} tokens {joint} takes as long as {steps:.{digits}f} {what}."


def _nothing(comparison: Comparison) -> str:
    drafter = comparison.settings.strategy.drafter
    if any(step.proposed is None or step.proposed for step in comparison.speculative.rounds):
        return f"Not one of {drafter.subject}'s proposals was accepted, so speculation could only cost time."
    found = "guessed nothing" if drafter.model else "found nothing to copy"
    return f"{capitalised(drafter.subject)} {found}, so both sides decoded one token at a time."


def other_load(comparison: Comparison) -> float | None:
    """The largest share of the processor that other programs took during the race or a repeat."""
    loads = [comparison.other_load, *(trial.other_load for trial in comparison.repeats)]
    return max((load for load in loads if load is not None), default=None)


def _certain(comparison: Comparison) -> str:
    """The counts, which hold beside other programs, too; empty if none disturbed a race on this machine."""
    load, passes = other_load(comparison), metrics.passes_to(comparison)
    if passes is None or not (comparison.environment.remote or (load or 0) > _BUSY):
        return ""
    beside = "" if load is None else f"Other programs took {percent(load)} of the processor; what is certain: "
    return capitalised(f"{beside}the target ran {passes[1]} times instead of {passes[0]}.")


def _apart(comparison: Comparison, speedup: Speedup | None, seconds: dict[Side, float]) -> str:
    """Why the headline says something else than the seconds beside it; empty if it does not."""
    if not seconds or speedup is None or speedup.strength == "noisy":
        return ""
    ratio = seconds["plain"] / seconds["speculative"]
    if 1 / _APART < ratio / speedup.middle < _APART:
        return ""
    more = [counted(len(comparison.repeats), "repeat")] if comparison.repeats else []
    more += ["step costs"] if speedup.expected is not None and not speedup.refuted else []
    how = "faster" if ratio > 1 else "slower"
    side: Side = "plain" if ratio > speedup.middle else "speculative"
    held = estimate.held_up(comparison.side(side), metrics.common_tokens(comparison))
    enough = held > max(_HELD * seconds[side], 0.05)  # shown in tenths
    cause = f", since single slow steps held up {side} decoding for {held:.1f} s" if enough else ""
    rests = f"The headline rests on {listed(['typical steps', *more])}, which vary less."
    return f"The seconds of this race alone say {times(ratio)} {how}{cause}. {rests}"


def _ceiling(comparison: Comparison) -> tuple[float, int] | None:
    """A perfect draft's speedup and lookahead here; None if step costs are unknown or spoiled."""
    costs, settings = comparison.costs, comparison.settings
    if costs is None or settings.kv_cache == "off" or (costs.other_load or 0.0) > _BUSY:
        return None
    return metrics.ceiling(costs, free=not settings.strategy.drafter.model)


# Why?


def _why(comparison: Comparison, speedup: Speedup | None, warned: Sequence[RunWarning]) -> Iterator[str]:
    if speedup is not None:
        yield _evidence(comparison, speedup, disturbed=any(each.kind == "disturbed" for each in warned))
        yield _makeup(comparison)
        found, longest = _ceiling(comparison), len(comparison.costs.verify) - 1 if comparison.costs else 0
        if found is not None and found[0] > 1 and longest >= (comparison.settings.strategy.fixed_lookahead or 0):
            yield (
                f"A perfect draft, whose every guess is right, would reach {found[0]:.1f}× on this machine, by "
                f"guessing {counted(found[1], 'token')} a round, where up to {longest} were measured. Up to there "
                "the draft is the limit, beyond it the machine."
            )
    for warning in warned:
        yield warning.reason
    if comparison.both:
        yield f"{capitalised(agreement(comparison))}. {divergence_reason(comparison)}".strip()


def _evidence(comparison: Comparison, speedup: Speedup, *, disturbed: bool) -> str:
    """Name the estimates behind the speedup, and give advice if they leave its side open."""
    repeats = len(comparison.repeats)
    runs = f"the race and {counted(repeats, 'repeat')}" if repeats else "one race"
    gave = (
        "more than a round can gain, so they are left out" if speedup.measured is None else f"{speedup.measured:.2f}×"
    )
    parts = [f"{counted(speedup.steps, 'timed step')} of {runs} give {gave}"]
    if speedup.expected is not None:
        left_out = ", which these steps refute" if speedup.refuted else ""
        parts.append(f"counts with step costs {speedup.expected:.2f}×{left_out}")
    firmer = " A longer answer gives a firmer result."
    advice = firmer if speedup.strength in ("noisy", "probable") and not disturbed else ""
    return f"{', '.join(parts)}. Estimate: {speedup}.{advice}"


def _makeup(comparison: Comparison) -> str:
    settings, costs = comparison.settings, comparison.costs
    drafter, lookahead = settings.strategy.drafter, settings.strategy.fixed_lookahead
    sentences = []
    if (rate := metrics.acceptance_rate(comparison.speculative)) is not None:
        sentences.append(f"The target accepted {percent(rate)} of {drafter.subject}'s proposals.")
    parts = []
    guess = None if costs is None or not drafter.model else metrics.draft_cost(costs)
    check = None if costs is None or lookahead is None else metrics.verify_cost(costs, lookahead + 1)
    if guess is not None:
        parts.append(f"a guess costs {percent(guess)} of a normal step")
    if lookahead is not None and check is not None:
        steps = "about one step" if check < 1.1 else f"{check:.1f} steps"
        parts.append(f"checking {counted(lookahead + 1, 'token')} costs {steps}")
    if parts:
        sentences.append(f"{capitalised('; '.join(parts))}, measured apart from this run.")
    return " ".join(sentences)


# Figures


def figures(comparison: Comparison, speedup: Speedup | None) -> Iterator[Figure]:
    """In an order in which they explain each other."""
    plain, speculative = comparison.plain, comparison.speculative

    def both(name: str, key: str, figure: Any, show: Any) -> Figure:
        return Figure(name, show(figure(plain)), show(figure(speculative)), FORMULAS[key])

    yield Figure("speedup", "", _speedup(speedup), estimate.FORMULA)
    yield both("tokens/s", "tokens_per_second", metrics.tokens_per_second, number)
    yield both("time per output token (TPOT)", "time_per_token", metrics.time_per_token, milliseconds)
    yield both("time to first token (TTFT)", "prefill", metrics.prefill_seconds, milliseconds)
    rate = number(metrics.acceptance_rate(speculative))
    yield Figure("acceptance rate α", "", rate, FORMULAS["acceptance_rate"])
    yield both("mean acceptance length τ", "mean_acceptance_length", metrics.mean_acceptance_length, number)
    yield Figure("acceptance by position i", "", _positions(speculative), FORMULAS["per_position"])
    costs, strategy = comparison.costs, comparison.settings.strategy
    if costs is None:
        return
    apart = ", measured apart from this run"
    if strategy.drafter.model:
        yield Figure("draft cost c", "", number(metrics.draft_cost(costs)), FORMULAS["draft_cost"] + apart)
    if strategy.fixed_lookahead is not None:
        tokens = strategy.fixed_lookahead + 1
        verify = metrics.verify_cost(costs, tokens)
        if verify is not None:  # passes over so many tokens were measured
            yield Figure(f"verify cost v({tokens})", "", number(verify), FORMULAS["verify_cost"] + apart)


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


def number(value: float | None, unit: str = "") -> str:
    return "–" if value is None else f"{value:.2f}{unit}"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def parameters(count: int) -> str:
    """Such as 1.1M or 7.0B."""
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"


def milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.2f} ms"


# Warnings, the gravest first


def warnings(comparison: Comparison, speedup: Speedup | None = None) -> Iterator[RunWarning]:
    if reason := fault(comparison):
        yield RunWarning("fault", reason, "outputs differ: a fault")
    impossible = speedup is not None and speedup.measured is None
    if reason := disturbed(other_load(comparison), spoiled=impossible):
        yield RunWarning("disturbed", reason, "other programs disturbed this")
    unsteady = [side for side, warm_up in (comparison.warm_up or {}).items() if not warm_up.steady]
    if unsteady:
        reason = (
            f"{' and '.join(unsteady).capitalize()} decoding still got faster when the warm-up ended, so it may look "
            "slower than it is; run again."
        )
        yield RunWarning("warming up", reason, "still warming up")
    if reason := _refused(comparison):
        yield RunWarning("nothing accepted", reason, "no guess accepted")
    found = _ceiling(comparison)
    if found is not None and found[0] <= 1:
        yield RunWarning("no gain possible", _too_slow(comparison), "no draft could pay here")
    tokens = [token.text if token.id is None else token.id for token in comparison.speculative.tokens]
    if (loop := metrics.loop(tokens)) is not None:
        repeated = (len(tokens) - loop.start) // loop.period
        what = "token" if loop.period == 1 else f"{loop.period} tokens"
        reason = (
            f"From token {loop.start + 1} on, the output repeats the same {what}, {repeated} times in all. "
            "Repetition is easy to guess, so this speedup says little about other texts."
        )
        yield RunWarning("loop", reason, "the answer repeats itself")


def disturbed(share: float | None, *, spoiled: bool = False) -> str:
    """Warn if other programs took much of the processor, or a measurement is impossible; empty otherwise."""
    sentences = []
    if share is not None and share > _BUSY:
        slows = "which slows both sides down, and not necessarily alike"
        programs = "Other programs, a browser on this machine included,"
        sentences.append(f"{programs} took {percent(share)} of the processor, {slows}.")
    if spoiled:
        sentences.append(
            "Other programs spoiled this measurement: it says that speculation gains more than the tokens of a round "
            "allow, which cannot be."
        )
    return " ".join([*sentences, "Close what you can and run again."]) if sentences else ""


def _refused(comparison: Comparison) -> str:
    """Name what may be at fault if a draft model's proposals were judged often and never accepted; else empty."""
    rounds, remote = comparison.speculative.rounds, comparison.environment.remote
    judged = sum(any(draft.verdict is not Outcome.DISCARDED for draft in step.proposed or ()) for step in rounds)
    by_model = comparison.settings.strategy.drafter.model
    if not by_model or judged < metrics.ROUNDS_TO_JUDGE or any(step.accepted for step in rounds):
        return ""
    why = "Probably the draft was made for another target, or is damaged; try another one."
    if remote:
        why = "Check which draft the server was started with."
    elif comparison.settings.engine == "genai":
        why += " Or the load is at fault (openvino.genai issue 4425): restart specdemo and compare."
    return f"Not one proposal was accepted in {judged} rounds, which is rare even for a poor draft. {why}"


def _too_slow(comparison: Comparison) -> str:
    costs = comparison.costs
    assert costs is not None, "the ceiling is known"
    free, cost, tokens = metrics.ceiling(costs, free=True), metrics.draft_cost(costs), len(costs.verify)
    if comparison.settings.strategy.drafter.model and free and free[0] > 1 and cost is not None and cost > _SLOW:
        what, advice = f"a draft step takes {cost:.2f}", "Choose a much smaller draft, or a faster device for it."
    else:
        what = f"a pass over {tokens} tokens takes {metrics.verify_cost(costs, tokens) or 0:.1f}"
        advice = "More threads, or another device, may change that."
    slower = "Even if every proposal were accepted, plain decoding would be faster"
    return f"{slower}: {what} times as long as a plain step. {advice}"
