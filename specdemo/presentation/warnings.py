"""Warnings about impossible or misleading figures, each with the reason.

A round reads the target's weights at least once, as a plain step does. So it takes hardly less time than a plain
step, and the speedup can hardly exceed τ, the tokens that a round commits. Likewise a pass over several tokens takes
no less time than a pass over one. Measurements that say otherwise were disturbed.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from specdemo import metrics
from specdemo.estimate import Interval, Summary, of_comparison
from specdemo.metrics import loop, predict
from specdemo.presentation.explain import TREES, fault
from specdemo.presentation.figures import percent
from specdemo.records import Comparison, Costs, Outcome
from specdemo.strategies import Tree

_BELOW = 0.95  # of v(1)
_BUSY = 0.2  # of the machine's CPU time

_SLOW = 0.3  # plain steps: a draft step below this is not to blame for a lack of gain
_EXPERTS = ("moe", "mixtral", "gpt_oss", "deepseek_v2", "deepseek_v3", "dbrx", "llama4", "jamba")
"""Substrings of the architecture names of mixture-of-experts models."""

Kind = Literal[
    "fault",
    "above τ",
    "v(n) below 1",
    "includes 1",
    "other load",
    "loop",
    "still warming up",
    "too wide",
    "nothing accepted",
    "counts differ",
    "slow draft",
    "no gain possible",
    "experts",
    "draft device",
    "trees on a CPU",
]


_CHIPS: dict[Kind, str] = {
    "fault": "outputs differ: a fault",
    "above τ": "impossible figure",
    "other load": "disturbed",
    "still warming up": "still warming up",
    "nothing accepted": "no guess accepted",
    "counts differ": "GenAI counts differently",
    "draft device": "draft on another device",
    "slow draft": "draft too slow to help",
    "no gain possible": "no draft could pay here",
    "too wide": "runs differ too much",
    "loop": "the answer repeats itself",
    "experts": "mixture of experts",
    "v(n) below 1": "step costs disturbed",
    "includes 1": "no clear difference",
    "trees on a CPU": "trees may differ on CPUs",
}
"""Warnings in a few words, gravest first."""
_RANKS = {kind: rank for rank, kind in enumerate(_CHIPS)}


class RunWarning(NamedTuple):
    """A warning: its kind, and the reason as a sentence. `detail` is added to the chip."""

    kind: Kind
    reason: str
    detail: str = ""

    @property
    def chip(self) -> str:
        """Warning in a few words."""
        return _CHIPS[self.kind] + (f": {self.detail}" if self.detail else "")

    @property
    def rank(self) -> int:
        """Rank among all kinds; 0 is the gravest."""
        return _RANKS[self.kind]


def warnings(comparison: Comparison) -> Iterator[RunWarning]:
    """Yield the warnings about a comparison."""
    speedup = of_comparison(comparison)
    if reason := fault(comparison):
        yield RunWarning("fault", reason)
    loads = [comparison.other_load, *(trial.other_load for trial in comparison.repeats)]
    load = max((share for share in loads if share is not None), default=None)
    if speedup is not None:
        yield from _impossible(speedup, speedup.tokens_per_round)
    yield from _of_load(load)
    for side, warm_up in (comparison.warm_up or {}).items():
        if not warm_up.steady:
            yield RunWarning(
                "still warming up",
                f"The {side} side was still getting faster when its warm-up ended after {warm_up.seconds:.0f} s, "
                "so it may look slower than it is; run again.",
            )
    if comparison.costs is not None:
        yield from _of_costs(comparison.costs)
    yield from causes(comparison)
    yield from _of_counters(comparison)
    tokens = [token.text if token.id is None else token.id for token in comparison.speculative.tokens]
    found = loop(tokens)
    if found is not None:
        times = (len(tokens) - found.start) // found.period
        what = "token" if found.period == 1 else f"{found.period} tokens"
        yield RunWarning(
            "loop",
            f"From token {found.start + 1} on, the output repeats the same {what}, {times} times in all. Repetition "
            "is easy to guess, so this speedup says little about other texts.",
        )


def causes(comparison: Comparison) -> Iterator[RunWarning]:
    """Yield warnings about the pair, or how it is loaded, that explain why speculation does not pay off."""
    pair, costs, by_model = comparison.pair, comparison.costs, comparison.settings.strategy.drafter.model
    yield from _of_outcomes(comparison, by_model=by_model)
    if costs is not None:
        yield from _of_steps(costs, by_model=by_model)
    if any(name in pair.target.architecture.lower() for name in _EXPERTS):
        yield RunWarning(
            "experts",
            "The target is a mixture of experts. A pass over several tokens reads the experts that each of them "
            "needs, so it costs more than in other models, and speculation gains less, or nothing.",
        )
    environment, runtime = comparison.environment, pair.runtime
    by_tree = isinstance(comparison.settings.strategy, Tree)
    if by_tree and environment.device == "CPU" and metrics.identical(comparison):
        yield RunWarning("trees on a CPU", f"{TREES}; in this run they were identical.")
    if by_model and pair.draft is not None and not runtime.draft_device and not environment.remote:
        target, draft = environment.device, environment.draft_device
        if target != draft:
            yield RunWarning(
                "draft device",
                f"The draft runs on {draft}, but the target on {target}, though no device was chosen for the draft. "
                "Choose one, or another device for both.",
            )


def _of_outcomes(comparison: Comparison, *, by_model: bool) -> Iterator[RunWarning]:
    """Warn if nothing was accepted, though enough rounds were judged."""
    rounds, pair = comparison.speculative.rounds, comparison.pair
    judged = sum(any(draft.verdict is not Outcome.DISCARDED for draft in step.proposed or ()) for step in rounds)
    if not by_model or judged < metrics.ROUNDS_TO_JUDGE or any(step.accepted for step in rounds):
        return
    if comparison.environment.remote:
        why = "Check which draft the server was started with."
    elif pair.head == "mtp":
        why = "Probably the head was damaged when the model was exported; export it again."
    elif pair.head is not None:
        why = "Probably the head was made for another target, or is damaged; try another one."
    else:
        why = "Probably the draft is of another family; try another one."
    counters, again = comparison.counters, ""
    if counters is not None and counters.reloaded and counters.accepted:
        why = (
            f"Loaded again, the same pair accepted {counters.accepted} of {counters.proposed} proposals, so the "
            "first load was at fault (openvino.genai issue 4425); run again."
        )
    elif counters is not None and counters.reloaded:
        again = " Reloading the pair made no difference."
    elif comparison.settings.engine == "genai" and not comparison.environment.remote:
        why += " Or the load is at fault (openvino.genai issue 4425): restart specdemo and compare."
    yield RunWarning(
        "nothing accepted",
        f"Not one proposal was accepted in {judged} rounds, which is rare even for a poor draft.{again} {why}",
    )


def _of_counters(comparison: Comparison) -> Iterator[RunWarning]:
    """Warn if GenAI's counters differ from the replay over the same tokens."""
    counters, ours = comparison.counters, metrics.proposed_and_accepted(comparison.speculative)
    if counters is None or ours is None or not counters.same or ours == (counters.proposed, counters.accepted):
        return
    yield RunWarning(
        "counts differ",
        f"GenAI counts {counters.proposed} proposals, {counters.accepted} accepted; the rounds shown here have "
        f"{ours[0]}, {ours[1]} accepted (both without the last round). So a replayed round may be wrong; tokens "
        "per round and times are not affected.",
    )


def _of_steps(costs: Costs, *, by_model: bool) -> Iterator[RunWarning]:
    """Warn if speculation could gain nothing even if every proposal were accepted, and name the steps to blame."""
    free, drafted, cost = predict(costs, 1.0, free=True), predict(costs, 1.0), metrics.draft_cost(costs)
    slower = "Even if every proposal were accepted, plain decoding would be faster:"
    by_passes = free is not None and not free.best
    by_both = by_model and drafted is not None and not drafted.best
    if by_both and not by_passes and cost is not None and cost > _SLOW:
        yield RunWarning(
            "slow draft",
            f"{slower} a draft step takes {cost:.2f} times as long as a plain step. Choose a much smaller draft, "
            "or a faster device for it.",
        )
    elif by_passes or by_both:
        tokens = len(costs.verify)
        yield RunWarning(
            "no gain possible",
            f"{slower} a pass over {tokens} tokens takes {metrics.verify_cost(costs, tokens) or 0:.1f} times as long "
            "as a plain step. Such a target is limited by arithmetic, not by memory; more threads, or another "
            "device, may change that.",
        )


def warnings_of(summary: Summary) -> Iterator[RunWarning]:
    """Yield the warnings about a summary of trials."""
    yield from _impossible(summary.speedup, summary.mean_accepted_length)
    reason = too_wide(summary.speedup)
    if reason is not None:
        yield RunWarning("too wide", reason)
    elif summary.speedup.includes_one:
        yield RunWarning("includes 1", f"The {summary.speedup.ends} includes 1, so neither side is clearly faster.")
    yield from _of_load(summary.other_load)


def _impossible(speedup: Interval, length: float | None) -> Iterator[RunWarning]:
    if length is not None and speedup.impossible:
        why = (
            "every target pass committed a single token, as in plain decoding, so speculation cannot have saved time"
            if length <= 1
            else "a round commits no more tokens than that, and hardly takes less time than a plain step"
        )
        yield RunWarning(
            "above τ",
            f"A speedup of {speedup.middle:.2f}× is more than τ = {length:.2f} allows: {why}. The plain runs were "
            "probably slowed down by something else; measure again.",
        )


def too_wide(speedup: Interval) -> str | None:
    """Return a warning if the runs differ too much."""
    if not speedup.wide:
        return None
    if speedup.call in ("faster", "slower"):
        how = f"Speculation is {speedup.call}, but the runs differ too much to say by how much"
        return f"{how} ({speedup.ends}); measure again."
    return f"The runs differ too much to name a speedup ({speedup.ends}); measure again."


def busy(share: float | None) -> str | None:
    """Return a warning if other programs took much of the CPU's time."""
    if share is None or share <= _BUSY:
        return None
    return (
        f"Other programs used {percent(share)} of this machine's processor meanwhile. That slows both sides down, "
        "and not necessarily alike; close them and run again."
    )


def _of_load(share: float | None) -> Iterator[RunWarning]:
    reason = busy(share)
    if share is not None and reason is not None:
        yield RunWarning("other load", reason, f"other programs used {percent(share)} of the processor")


def _of_costs(costs: Costs) -> Iterator[RunWarning]:
    passes = [(metrics.verify_cost(costs, n) or 1.0, n) for n in range(2, len(costs.verify) + 1)]
    least, tokens = min(passes, default=(1.0, 0))
    if least < _BELOW:
        yield RunWarning(
            "v(n) below 1",
            f"A pass over {tokens} tokens seemed to take {least:.2f} of one over a single token. A v({tokens}) below "
            "1 cannot be: something else slowed the machine down while step costs were measured.",
        )
