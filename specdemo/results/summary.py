"""One summary of a comparison, for page, terminal, reports and files: every figure and sentence stands here, once.

What is certain comes first: counts do not depend on clocks. The headline's three strengths follow from the interval.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from specdemo.errors import capitalised, listed
from specdemo.records import SIDES, Comparison, Outcome, Run, Side
from specdemo.results import estimate, metrics
from specdemo.results.estimate import Direction, Interval, Speedup, Strength
from specdemo.results.metrics import FORMULAS
from specdemo.results.words import agreement, divergence_reason, fault, notes, run_words
from specdemo.text import counted

_EXACT = 1.2  # within this factor of 1×, a second decimal matters
_APART = 1.1  # headline over the ratio of the race's clocks; hand-set: from here on a reader asks why
_SLOW = 0.3  # plain steps; hand-set: a draft step below this is not to blame for a lack of gain
_SOURCES = {True: "in this run", False: "measured apart from this run"}
_POSITIONS = 4  # of a proposal whose acceptance is listed; the chart of this name has all


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
    disturbed the clocks. `seconds` are for the same number of tokens without the prefill, in typical steps; `apart`
    says why they differ from the race's clocks.
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
    seconds = _seconds(comparison, speedup)
    nothing = speedup is not None and not any(step.accepted for step in comparison.speculative.rounds)
    strength: Strength | Literal["none"] = "none" if speedup is None else speedup.strength
    if nothing and strength in ("uncertain", "noisy"):
        strength = "even"  # a round that accepts nothing cannot be faster than a plain step, whatever the clocks say
    return Summary(
        headline=_headline(comparison, speedup, nothing=nothing),
        strength=strength,
        direction="same" if speedup is None else speedup.direction,
        range="" if speedup is None else between(speedup),
        refined=f"refined by {counted(len(comparison.repeats), 'repeat')}" if comparison.repeats else "",
        sentence=_sentence(comparison, speedup, seconds, nothing=nothing),
        certain=_certain(comparison, strength),
        speedup=speedup,
        seconds=seconds,
        apart=_apart(comparison, speedup),
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
    if speedup.strength == "uncertain":
        if 1 / (1 + estimate.LITTLE) < speedup.middle < 1 + estimate.LITTLE:
            return f"About {speedup.middle:.2f}×, not certain"
        return f"About {how} {'faster' if speedup.middle > 1 else 'slower'}, not certain"
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
    return "Nothing gained" if nothing and speedup.strength in ("uncertain", "noisy") else call(speedup)


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
    joint = "and" if steps <= length else "but"
    what = "normal step" if f"{steps:.2f}" == "1.00" else "normal steps"
    return f"Each round writes {length:.2f} tokens {joint} takes as long as {steps:.2f} {what}."


def _nothing(comparison: Comparison) -> str:
    drafter = comparison.settings.strategy.drafter
    if any(step.proposed is None or step.proposed for step in comparison.speculative.rounds):
        return f"Not one of {drafter.subject}'s proposals was accepted, so speculation could only cost time."
    found = "proposed nothing" if drafter.model else "found nothing to copy"
    return f"{capitalised(drafter.subject)} {found}, so both sides decoded one token at a time."


def _certain(comparison: Comparison, strength: str) -> str:
    """The counts, which hold whatever the clocks say; empty if these are enough."""
    load, passes = max(estimate.loads(comparison), default=0.0), metrics.passes_to(comparison)
    wanted = comparison.environment.remote or load > estimate.BUSY or strength == "uncertain"
    if passes is None or not wanted:
        return ""
    beside = (
        f"Other programs took {percent(load)} of the processor; what is certain: " if load > estimate.BUSY else ""
    )
    return capitalised(f"{beside}the target ran {passes[1]} times instead of {passes[0]}.")


def _seconds(comparison: Comparison, speedup: Speedup | None) -> dict[Side, float]:
    """Both sides' for as many tokens as both have, in typical steps, so that their ratio is the headline's."""
    tokens = metrics.common_tokens(comparison)
    if speedup is not None and speedup.strength != "noisy":
        plain = tokens * speedup.plain_step
        return {"plain": plain, "speculative": plain / speedup.middle}
    return {side: metrics.seconds_to(comparison.side(side), tokens) for side in SIDES} if tokens else {}


def _apart(comparison: Comparison, speedup: Speedup | None) -> str:
    """Why headline and bars say something else than the race's own clocks; empty if they do not."""
    if speedup is None or speedup.strength == "noisy":
        return ""
    plain, speculative = (
        metrics.seconds_to(run, metrics.common_tokens(comparison))
        for run in (comparison.plain, comparison.speculative)
    )
    ratio = plain / speculative
    if 1 / _APART < ratio / speedup.middle < _APART:
        return ""
    more = [counted(len(comparison.repeats), "repeat")] if comparison.repeats else []
    more += ["step costs"] if speedup.counts_expected else []
    how = "faster" if ratio > 1 else "slower"
    rests = f"Headline and bars rest on {listed(['typical steps', *more])}, which vary less."
    return f"The clocks of this race alone say {times(ratio)} {how}. {rests}"


def _ceiling(comparison: Comparison) -> tuple[float, int] | None:
    """A perfect draft's speedup and lookahead here; None if step costs are unknown or spoiled."""
    costs, settings = comparison.costs, comparison.settings
    if costs is None or settings.kv_cache == "off" or (costs.other_load or 0.0) > estimate.BUSY:
        return None
    return metrics.ceiling(costs, free=not settings.strategy.drafter.model)


# Why?


def _why(comparison: Comparison, speedup: Speedup | None, warned: Sequence[RunWarning]) -> Iterator[str]:
    if speedup is not None:
        yield _evidence(comparison, speedup, disturbed=any(each.kind == "disturbed" for each in warned))
        yield _makeup(comparison, speedup)
        found, longest = _ceiling(comparison), len(comparison.costs.verify) - 1 if comparison.costs else 0
        if found is not None and found[0] > 1 and longest >= (comparison.settings.strategy.fixed_lookahead or 0):
            yield (
                f"A perfect draft, whose every proposal is accepted, would reach {found[0]:.1f}× on this machine, by "
                f"proposing {counted(found[1], 'token')} a round, where up to {longest} were measured. Up to there "
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
    costs = f", counts with step costs {speedup.expected:.2f}×" if speedup.counts_expected else ""
    firmer = " A longer answer gives a firmer result."
    advice = firmer if speedup.strength in ("uncertain", "noisy", "probable") and not disturbed else ""
    return f"{counted(speedup.steps, 'timed step')} of {runs} give {gave}{costs}. Estimate: {speedup}.{advice}"


def _makeup(comparison: Comparison, speedup: Speedup) -> str:
    drafter, sentences = comparison.settings.strategy.drafter, []
    if (rate := metrics.acceptance_rate(comparison.speculative)) is not None:
        sentences.append(f"The target accepted {percent(rate)} of {drafter.subject}'s proposals.")
    costs, lookahead, parts = estimate.round_costs(comparison, speedup), _lookahead(comparison), list[str]()
    if costs is not None and costs.draft_step is not None:
        parts.append(f"a proposal costs {percent(costs.draft_step)} of a normal step")
    if costs is not None and costs.verify is not None and lookahead is not None:
        steps = "about one step" if costs.verify < 1.1 else f"{costs.verify:.1f} steps"
        parts.append(f"checking {counted(lookahead + 1, 'token')} costs {steps}")
    if costs is not None and parts:
        sentences.append(f"{capitalised('; '.join(parts))}, {_SOURCES[costs.own]}.")
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
    costs, lookahead = estimate.round_costs(comparison, speedup), _lookahead(comparison)
    at = ("", "") if lookahead is None else (f"({lookahead})", f"({lookahead + 1})")
    names = ("draft cost c", f"drafting d{at[0]}", f"verify cost v{at[1]}")
    for name, key, cost in zip(names, ("draft_cost", "drafting", "verify_cost"), costs or (), strict=False):
        if cost is not None and costs is not None:
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
    if reason := disturbed(max(estimate.loads(comparison), default=None), spoiled=impossible):
        yield RunWarning("disturbed", reason, "other programs disturbed this")
    unsteady = [side for side, warm_up in (comparison.warm_up or {}).items() if not warm_up.steady]
    if unsteady:
        reason = (
            f"{' and '.join(unsteady).capitalize()} decoding still got faster when the warm-up ended, so it may look "
            "slower than it is; run again."
        )
        yield RunWarning("warming up", reason, "still warming up")
    if reason := _refused(comparison):
        yield RunWarning("nothing accepted", reason, "no proposal accepted")
    found = _ceiling(comparison)
    if found is not None and found[0] <= 1:
        yield RunWarning("no gain possible", _too_slow(comparison), "no draft could pay here")
    tokens = [token.text if token.id is None else token.id for token in comparison.speculative.tokens]
    if (loop := metrics.loop(tokens)) is not None:
        repeated = (len(tokens) - loop.start) // loop.period
        what = "token" if loop.period == 1 else f"{loop.period} tokens"
        reason = (
            f"From token {loop.start + 1} on, the output repeats the same {what}, {repeated} times in all. "
            "Repetition is easy to predict, so this speedup says little about other texts."
        )
        yield RunWarning("loop", reason, "the answer repeats itself")


def disturbed(share: float | None, *, spoiled: bool = False) -> str:
    """Warn if other programs took much of the processor, or a measurement is impossible; empty otherwise."""
    sentences = []
    if share is not None and share > estimate.BUSY:
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
