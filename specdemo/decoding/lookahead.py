"""Lookahead policies: when a drafter stops proposing and lets the target verify.

A longer proposal commits more tokens when it is accepted and costs more when it is not. The best length
changes from round to round, since some words are easier to guess than others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from specdemo.decoding.auto import AutoPolicy, Experience, Timing
from specdemo.errors import SettingsError
from specdemo.records import Costs
from specdemo.strategies import Strategy
from specdemo.strategies.draft import Auto, Confidence, Constant, Heuristic, Planned
from specdemo.strategies.text import Both, BothAuto

HEURISTIC_START = 5
_HEURISTIC_GAIN, _HEURISTIC_LOSS = 2, 1


class LookaheadPolicy(Protocol):
    """Decides before every draft step of one request, and learns from the outcome of every round."""

    def goes_on(self, proposed: int, confidence: Callable[[], float]) -> bool:
        """Whether to propose another token after `proposed` ones in this round.

        `confidence` computes the draft's probability of what it last proposed, and is called only if needed.
        """

    def learn(self, proposed: int, accepted: int, fed: int, timing: Timing | None = None) -> None:
        """A round ended: how many tokens were proposed, how many of those were accepted, and how many tokens the
        target's pass fed, padding included, and how long it took. The first round is the prefill.
        """

    def update_strategy(self, strategy: Strategy) -> bool:
        """Decide as this strategy does from now on; False, and nothing changes, if it is of another type."""


class _Rigid:
    """A policy that nobody changes while it is in use."""

    def update_strategy(self, strategy: Strategy) -> bool:
        """It cannot be changed."""
        return False


class _Fixed(_Rigid):
    """A policy whose outcome teaches nothing."""

    def learn(self, proposed: int, accepted: int, fed: int, timing: Timing | None = None) -> None:
        """Outcomes do not matter."""


@dataclass
class ConstantPolicy(_Fixed):
    """The same lookahead in every round."""

    lookahead: int

    def goes_on(self, proposed: int, confidence: Callable[[], float]) -> bool:
        """Until the lookahead is reached."""
        return proposed < self.lookahead

    def update_strategy(self, strategy: Strategy) -> bool:
        """With another lookahead."""
        if not isinstance(strategy, Constant):
            return False
        self.lookahead = strategy.num_assistant_tokens
        return True


@dataclass
class ConfidencePolicy(_Fixed):
    """Until the draft's own probability of what it last proposed falls below a threshold, or the cap is reached."""

    threshold: float
    cap: int | None = None

    def goes_on(self, proposed: int, confidence: Callable[[], float]) -> bool:
        """While the last proposal was likely enough; the unlikely one is still verified."""
        return not proposed or ((self.cap is None or proposed < self.cap) and confidence() >= self.threshold)

    def update_strategy(self, strategy: Strategy) -> bool:
        """With another threshold."""
        if not isinstance(strategy, Confidence):
            return False
        self.threshold, self.cap = strategy.assistant_confidence_threshold, strategy.max_assistant_tokens
        return True


@dataclass
class PlannedPolicy(_Fixed):
    """A lookahead for each round, planned in advance; once they are used up, nothing is proposed.

    With the oracle's lookaheads, speculation is as fast as the draft's agreement with the target allows.
    """

    lookaheads: Sequence[int]
    round: int = -1

    def goes_on(self, proposed: int, confidence: Callable[[], float]) -> bool:
        """Until this round's lookahead is reached."""
        if not proposed:
            self.round += 1
        return self.round < len(self.lookaheads) and proposed < self.lookaheads[self.round]


@dataclass
class HeuristicPolicy(_Rigid):
    """Two more after a fully accepted round, one fewer after any other, as in transformers."""

    lookahead: int = HEURISTIC_START

    def goes_on(self, proposed: int, confidence: Callable[[], float]) -> bool:
        """Until the current lookahead is reached."""
        return proposed < self.lookahead

    def learn(self, proposed: int, accepted: int, fed: int, timing: Timing | None = None) -> None:
        """Adapt the lookahead."""
        if not proposed:
            return
        if accepted == proposed:
            self.lookahead += _HEURISTIC_GAIN
        else:
            self.lookahead = max(self.lookahead - _HEURISTIC_LOSS, 1)


def policy_for(
    strategy: Strategy, costs: Costs | None = None, experience: Experience | None = None
) -> LookaheadPolicy:
    """The policy of a strategy in which a draft proposes, at the beginning of a request.

    `experience`: what earlier requests taught the automatic lookahead, which goes on learning in it.

    Raises:
        SettingsError: the strategy needs step costs, and none were measured.
    """
    match strategy:
        case Constant(lookahead):
            return ConstantPolicy(lookahead)
        case Both(num_assistant_tokens=lookahead):
            costs = required(costs)
            return AutoPolicy(costs, len(costs.verify), constant=lookahead, experience=experience)
        case Confidence(threshold, cap):
            return ConfidencePolicy(threshold, cap)
        case Heuristic():
            return HeuristicPolicy()
        case Planned(lookaheads):
            return PlannedPolicy(lookaheads)
        case Auto(cap) | BothAuto(max_assistant_tokens=cap):
            return AutoPolicy(required(costs), cap, experience=experience)
    raise AssertionError(f"{strategy} has no policy")


def required(costs: Costs | None) -> Costs:
    """Step costs, the draft's included.

    Raises:
        SettingsError: they were not measured.
    """
    if costs is None or costs.draft_step is None:
        raise SettingsError("The cost of a draft step is unknown for this pair; choose another policy or drafter.")
    return costs


Proposed = TypeVar("Proposed")


def propose(
    policy: LookaheadPolicy,
    limit: int,
    choose: Callable[[Sequence[Proposed]], Proposed],
    confidence: Callable[[Proposed], float],
) -> list[Proposed]:
    """The draft loop: propose until the policy has enough, at most `limit` tokens.

    `choose` makes the next one after those of this round; `confidence` is the draft's probability of one.
    """
    proposals: list[Proposed] = []
    while len(proposals) < limit and policy.goes_on(len(proposals), lambda: confidence(proposals[-1])):
        proposals.append(choose(proposals))
    return proposals
