"""Warnings about a comparison, the most serious first: why its speedup cannot be trusted, or what holds it back."""

from collections.abc import Iterator
from dataclasses import dataclass

from specdemo.capabilities import ENGINES
from specdemo.errors import listed
from specdemo.records import SIDES, Comparison, Outcome
from specdemo.results import estimate, metrics
from specdemo.results.agreement import fault
from specdemo.results.estimate import Speedup
from specdemo.text import percent

_SPEEDUP_MARGIN = 1.1  # × τ; a tenth for clocks and caches
_SLOW_DRAFT_STEP = 0.3  # plain steps; hand-set: a faster draft step is not the reason for a lack of gain
_PROMPT_SECONDS, _PROMPT_CHANGE = 1.0, 1.2  # hand-set: to the first token, and × the speedup; below, few would mind


@dataclass(frozen=True)
class RunWarning:
    """`chip` is the `reason` in a few words."""

    kind: str
    reason: str
    chip: str


def find_warnings(comparison: Comparison, speedup: Speedup | None = None) -> Iterator[RunWarning]:
    if reason := fault(comparison):
        yield RunWarning("fault", reason, "outputs differ, see Why?")
    if reason := disturbed(estimate.mean_load((comparison, *comparison.repeats))):
        yield RunWarning("disturbed", reason, "other programs interfered")
    if speedup is not None and (reason := _unusual(speedup)):
        yield RunWarning("unusual", reason, "unusually fast")
    if speedup is not None and (reason := _long_prompt(comparison)):
        yield RunWarning("long prompt", reason, "the prompt not counted")
    unsteady = [side for side, warm_up in (comparison.warm_up or {}).items() if not warm_up.steady]
    if unsteady:
        reason = (
            f"{listed(unsteady).capitalize()} decoding {'were' if len(unsteady) > 1 else 'was'} still getting faster "
            "when the warm-up ended, and may look slower than it is. Run again."
        )
        yield RunWarning("warming up", reason, "still warming up")
    if reason := _refused(comparison):
        yield RunWarning("nothing accepted", reason, "no proposal accepted")
    best = known_ceiling(comparison)
    if best is not None and best[0] <= 1:
        yield RunWarning("no gain possible", _too_slow(comparison), "no draft pays off here")
    tokens = [token.text if token.id is None else token.id for token in comparison.speculative.tokens]
    if (loop := metrics.loop(tokens)) is not None:
        repeated = (len(tokens) - loop.start) // loop.period
        what = "token" if loop.period == 1 else f"{loop.period} tokens"
        reason = (
            f"From token {loop.start + 1} on, the output repeats the same {what}, {repeated} times in all. "
            "Repetition is easy to predict, so this speedup says little about other texts."
        )
        yield RunWarning("loop", reason, "the answer repeats itself")


def disturbed(share: float | None) -> str:
    if share is None or share <= estimate.BUSY_SHARE:
        return ""
    return (
        f"Other programs, including any browser on this machine, took {percent(share)} of the processor, which slows "
        "down both sides, but not necessarily equally. Close what you can and run again."
    )


def _unusual(speedup: Speedup) -> str:
    if (length := speedup.tokens_per_round) is None or speedup.ratio <= _SPEEDUP_MARGIN * length:
        return ""
    return (
        f"A speedup of {speedup.ratio:.2f}× is unusual where a round writes {length:.2f} tokens: a round reads all "
        "weights once, as a plain step does. The plain side may run on other hardware, or something slowed it down."
    )


def _long_prompt(comparison: Comparison) -> str:
    """Say what reading the prompt, which the headline leaves out, would change in it, if that is much."""
    reading = [comparison.side(side).prefill.seconds for side in SIDES]
    writing = [*metrics.clocks(comparison).values()]
    plain, speculative = (sum(parts) for parts in zip(reading, writing, strict=True))
    change = plain / speculative * writing[1] / writing[0]
    if max(reading) < _PROMPT_SECONDS or 1 / _PROMPT_CHANGE < change < _PROMPT_CHANGE:
        return ""
    return (
        f"The headline leaves out reading the prompt, which took {reading[0]:.1f} s plainly and {reading[1]:.1f} s "
        f"with speculation. With it, the same tokens took {plain:.1f} s and {speculative:.1f} s."
    )


def _refused(comparison: Comparison) -> str:
    """Name the likely reason if a draft model's proposals were judged often and never accepted."""
    rounds = comparison.speculative.rounds
    judged = sum(any(draft.outcome is not Outcome.DISCARDED for draft in step.proposed or ()) for step in rounds)
    by_model = comparison.settings.strategy.drafter.model
    if not by_model or judged < metrics.ROUNDS_TO_JUDGE or any(step.accepted for step in rounds):
        return ""
    why = "The draft was probably made for another target, or is damaged; try another one."
    if other := ENGINES[comparison.settings.engine].when_refused:
        why += f" {other}"
    return f"No proposal was accepted in {judged} rounds, which is rare even for a poor draft. {why}"


def _too_slow(comparison: Comparison) -> str:
    costs = comparison.costs
    assert costs is not None, "the ceiling is known"
    free, cost = metrics.ceiling(costs, free=True), (costs.draft_step or 0.0) / costs.plain_step
    if comparison.settings.strategy.drafter.model and cost > _SLOW_DRAFT_STEP and free and free[0] > 1:
        what, advice = f"a draft step takes {cost:.2f}", "Choose a much smaller draft or a faster device for it."
    else:
        what = f"a pass over {len(costs.verify)} tokens takes {costs.verify[-1] / costs.plain_step:.1f}"
        advice = "More threads or another device may change that."
    slower = "Even if every proposal were accepted, plain decoding would be faster"
    return f"{slower}: {what} times as long as a plain step. {advice}"


def known_ceiling(comparison: Comparison) -> tuple[float, int] | None:
    """A perfect draft's speedup and lookahead here; None if step costs are unknown or spoiled."""
    costs, settings = comparison.costs, comparison.settings
    if costs is None or settings.kv_cache == "off" or (costs.other_load or 0.0) > estimate.BUSY_SHARE:
        return None
    return metrics.ceiling(costs, free=not settings.strategy.drafter.model)
