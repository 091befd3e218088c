"""The conclusion of a comparison, for page, terminal, reports and pictures alike.

It has one headline, one plain sentence and at most one warning. Everything else is in `why`, collapsed at first,
where each term is explained once. All parts quote the same estimate, from `analysis.estimates`.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from specdemo import metrics
from specdemo.errors import capitalised
from specdemo.estimate import Speedup, of_comparison
from specdemo.metrics import ceiling
from specdemo.presentation.explain import agreement, divergence_reason
from specdemo.presentation.figures import percent
from specdemo.presentation.warnings import warnings
from specdemo.records import SIDES, Comparison, Costs, Run
from specdemo.strategies import SOURCES

Tone = Literal["faster", "slower", "same"]

_TOO_NOISY = "too noisy to call"


class Conclusion(NamedTuple):
    """The conclusion of a comparison.

    `seconds` are estimates for plain and speculative decoding of the same number of tokens; their ratio is the
    headline's number, and `difference` the time saved or lost. `warning` is the gravest one, and `chip` the same in a
    few words. `ceiling` is the speedup of a perfect draft on this machine.
    """

    headline: str
    tone: Tone
    sentence: str
    seconds: tuple[float, float] | None
    difference: str | None
    ceiling: str | None
    warning: str | None
    chip: str | None
    why: tuple[str, ...]


def conclude(comparison: Comparison) -> Conclusion:
    """Return the conclusion of a comparison."""
    speedup = of_comparison(comparison) if comparison.both else None
    worst = next(iter(sorted(warnings(comparison), key=lambda warning: warning.rank)), None)
    seconds = None if speedup is None else seconds_of(comparison, speedup)
    return Conclusion(
        headline=headline(comparison),
        tone=tone(comparison),
        sentence=sentence(comparison),
        seconds=seconds,
        difference=None if seconds is None or speedup is None else _difference(speedup, *seconds),
        ceiling=ceiling_words(comparison),
        warning=worst and worst.reason,
        chip=worst and worst.chip,
        why=tuple(filter(None, why(comparison))),
    )


def headline(comparison: Comparison) -> str:
    """Return the conclusion in a few words, such as "1.84× faster"."""
    if not comparison.both:
        return "Nothing to compare"
    speedup = of_comparison(comparison)
    if speedup is None:
        return "Too short to compare"
    match speedup.call:
        case "faster" if speedup.wide:
            return f"{speedup.low:.2f} to {speedup.high:.2f}× faster"
        case "faster":
            return f"{speedup.middle:.2f}× faster"
        case "slower":
            return f"{speedup.middle:.2f}×: slower"
        case "about even":
            return f"About even: {speedup.middle:.2f}×"
        case _:
            return capitalised(_TOO_NOISY)


def tone(comparison: Comparison) -> Tone:
    """Return the conclusion's direction, for colouring."""
    speedup = of_comparison(comparison) if comparison.both else None
    call = _TOO_NOISY if speedup is None else speedup.call
    return "faster" if call == "faster" else "slower" if call == "slower" else "same"


def sentence(comparison: Comparison) -> str:
    """Give the reason in one plain sentence: a round's tokens compared with its cost in plain steps."""
    missing = " ".join(_missing(comparison))
    speedup = of_comparison(comparison) if comparison.both else None
    if missing or speedup is None:
        return missing or "The answer is too short to compare; allow more tokens."
    nothing = _nothing(comparison)
    if nothing:
        return nothing
    if speedup.call == _TOO_NOISY:
        return f"{_noise(speedup)} {_settling(comparison, speedup)}"
    steps, length = speedup.plain_steps_per_round, speedup.tokens_per_round
    if steps is None or length is None:
        plain, speculative = seconds_of(comparison, speedup)
        return f"For the same tokens plain decoding takes {plain:.2f} s, speculative {speculative:.2f} s."
    if steps > length:
        return f"Each round takes as long as {steps:.2f} normal steps but yields only {length:.2f} tokens."
    return f"Each round yields {length:.2f} tokens and takes as long as {steps:.2f} normal steps."


def why(comparison: Comparison) -> Iterator[str]:
    """Yield the evidence in paragraphs, some of which may be empty."""
    if comparison.both:
        yield evidence(comparison)
        yield makeup(comparison)
        yield _allowed(comparison)
    for warning in warnings(comparison):
        yield warning.reason
    if comparison.both:
        yield f"{capitalised(agreement(comparison))}. {divergence_reason(comparison)}".strip()


def evidence(comparison: Comparison) -> str:
    """Name the number of timed steps behind the speedup, and give advice if they are too few."""
    speedup = of_comparison(comparison)
    if speedup is None:
        return ""
    repeats = len(comparison.repeats)
    if not speedup.steps:
        return f"Median of {repeats} repeats: {speedup}."
    runs = {0: "one race", 1: "the race and 1 repeat"}.get(repeats, f"the race and {repeats} repeats")
    settle = f" {_settling(comparison, speedup)}" if speedup.call == _TOO_NOISY or not repeats else ""
    return f"Measured by {speedup.steps} timed steps of {runs}: {speedup}.{settle}"


def makeup(comparison: Comparison) -> str:
    """Describe the acceptance rate, and the costs of drafting and verifying."""
    settings, costs = comparison.settings, comparison.costs
    drafter, lookahead = settings.strategy.drafter, settings.strategy.fixed_lookahead
    sentences = []
    rate = metrics.acceptance_rate(comparison.speculative)
    if rate is not None:
        sentences.append(f"The target accepted {percent(rate)} of {drafter.proposals}.")
    if len(drafter.sources) > 1:
        sentences.append(_shares(comparison.speculative))
    if costs is not None:
        sentences.append(_costs(costs, lookahead, drafted=drafter.model))
    return " ".join(filter(None, sentences))


def ceiling_words(comparison: Comparison) -> str | None:
    """Describe the speedup of a perfect draft on this machine; None if steps were not measured."""
    found = _ceiling(comparison)
    if found is None:
        return None
    return f"a perfect draft would reach {found[0]:.1f}×" if found[0] > 1 else "no draft could pay here"


def seconds_of(comparison: Comparison, speedup: Speedup) -> tuple[float, float]:
    """Return the seconds that plain and speculative decoding take for the common tokens, in the speedup's ratio."""
    tokens = metrics.common_tokens(comparison)
    step = speedup.plain_step
    plain = metrics.seconds_to(comparison.plain, tokens) if step is None else step * tokens
    return plain, plain / speedup.middle


def _difference(speedup: Speedup, plain: float, speculative: float) -> str | None:
    """Describe the time that speculation saves or costs, shown beside the bars; None if it is uncertain."""
    match speedup.call:
        case "faster":
            return f"{_seconds(plain - speculative)} saved of {_seconds(plain)}"
        case "slower":
            return f"{_seconds(speculative - plain)} lost on {_seconds(plain)}"
        case "about even":
            return "little difference"
        case _:
            return None


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1000:.0f} ms"


def _missing(comparison: Comparison) -> Iterator[str]:
    """Yield the reasons why a side is missing or ended too early."""
    yield from comparison.failures.values()
    for side in SIDES:
        run = comparison.side(side)
        if run.finish_reason == "absent":
            yield f"There is no {side} server, so there is nothing to compare with."
        elif run.finish_reason == "cancelled" and not run.tokens:
            yield f"Stopped before the {side} side began."


def _nothing(comparison: Comparison) -> str:
    """Return a sentence if nothing was proposed, or nothing accepted; else empty."""
    rounds = comparison.speculative.rounds
    if not rounds or any(step.accepted for step in rounds):
        return ""
    drafter = comparison.settings.strategy.drafter
    if any(step.proposed is None or step.proposed for step in rounds):
        return f"Not one of {drafter.proposals} was accepted, so speculation could only cost time."
    who = SOURCES[drafter.sources[0]]
    found = "guessed nothing" if drafter.model else "found nothing to copy"
    return f"{capitalised(who)} {found}, so both sides decoded one token at a time."


def _noise(speedup: Speedup) -> str:
    """Explain why the result is too noisy to call."""
    if speedup.impossible:
        return f"The measured {speedup.middle:.2f}× is impossible: something else slowed one side down."
    if speedup.low is None or speedup.high is None:
        return "There are too few runs to tell."
    return f"Anything from {speedup.low:.2f}× to {speedup.high:.2f}× fits the measurements."


def _settling(comparison: Comparison, speedup: Speedup) -> str:
    """Advise how to get a firmer result."""
    if any(warning.kind == "other load" for warning in warnings(comparison)):
        return "Close other programs and run again."
    if metrics.common_tokens(comparison) < 64:
        return "Allow a longer answer for a firmer result."
    return "Run again for a firmer result."


def _allowed(comparison: Comparison) -> str:
    """Return the ceiling as a sentence."""
    found = _ceiling(comparison)
    if found is None:
        return ""
    speedup, lookahead = found
    if speedup <= 1:
        return "On this machine not even a perfect draft, whose every guess is right, would save time."
    return (
        f"A perfect draft, whose every guess is right, would reach {speedup:.2f}× on this machine, by guessing "
        f"{lookahead} tokens a round. Up to there the draft is the limit, beyond it the machine."
    )


def _ceiling(comparison: Comparison) -> tuple[float, int] | None:
    """Return a perfect draft's speedup and lookahead; None if steps were not measured, or were disturbed."""
    settings, speedup = comparison.settings, of_comparison(comparison)
    disturbed = any(warning.kind in ("other load", "v(n) below 1") for warning in warnings(comparison))
    if comparison.costs is None or settings.kv_cache == "off" or disturbed:
        return None
    if speedup is None or speedup.call == _TOO_NOISY:
        return None
    return ceiling(comparison.costs, free=not settings.strategy.drafter.model)


def _costs(costs: Costs, lookahead: int | None, *, drafted: bool) -> str:
    """Describe the costs of a draft step and of a target pass, measured separately from the run."""
    parts = []
    guess = metrics.draft_cost(costs)
    if drafted and guess is not None:
        parts.append(f"a guess costs {percent(guess)} of a normal step")
    check = None if lookahead is None else metrics.verify_cost(costs, lookahead + 1)
    if lookahead is not None and check is not None:
        tokens = "token" if lookahead == 0 else f"{lookahead + 1} tokens"
        steps = (
            "about one step" if abs(check - 1) < 0.1 else f"{check:.1f} steps"
        )  # v(n) < 1 has a warning of its own
        parts.append(f"checking {tokens} costs {steps}")
    return f"{capitalised('; '.join(parts))}, measured apart from this run." if parts else ""


def _shares(run: Run) -> str:
    """Describe the rounds by source of proposals, and how many proposals were accepted."""
    parts = []
    for source, name in SOURCES.items():
        rounds = [step for step in run.rounds if step.source == source]
        if rounds:
            accepted, proposed = (
                sum(step.accepted for step in rounds),
                sum(len(step.proposed or ()) for step in rounds),
            )
            of_them = f"{accepted} of {proposed} accepted"
            parts.append(f"{name} guessed in {len(rounds)} of {len(run.rounds)} rounds ({of_them})")
    return f"{capitalised('; '.join(parts))}." if parts else ""
