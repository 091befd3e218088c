"""Lookahead policies: when a drafter stops proposing and the target verifies.

A longer proposal commits more tokens if accepted and costs more if not. The best length changes from round to round,
since some tokens are easier to guess than others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Protocol, TypeVar

from specdemo.decoding.auto import AutoPolicy, Estimates
from specdemo.errors import SettingsError
from specdemo.records import Costs
from specdemo.strategies import Auto, Both, Confidence, Constant, Heuristic, Strategy

_HEURISTIC_START = 5
_HEURISTIC_GAIN, _HEURISTIC_LOSS = 2, 1


class LookaheadPolicy(Protocol):
    """Decides before each draft step of a request, and learns from each round's outcome."""

    def proposes_more(self, proposed: int, confidence: Callable[[], float]) -> bool:
        """Whether to propose another token after `proposed` ones in this round.

        `confidence` computes the draft's probability of its last proposal, and is called only if needed.
        """

    def learn(self, proposed: int, accepted: int) -> None:
        """Learn from a round's outcome. The first round is the prefill."""

    def update_strategy(self, strategy: Strategy) -> bool:
        """Follow this strategy from now on; return False, changing nothing, if its type differs."""


class _Rigid:
    """A policy that cannot be changed while in use."""

    def update_strategy(self, strategy: Strategy) -> bool:
        return False


class _Fixed(_Rigid):
    """A policy that does not learn."""

    def learn(self, proposed: int, accepted: int) -> None:
        """Do nothing."""


@dataclass
class ConstantPolicy(_Fixed):
    """The same lookahead in every round."""

    lookahead: int

    def proposes_more(self, proposed: int, confidence: Callable[[], float]) -> bool:
        return proposed < self.lookahead

    def update_strategy(self, strategy: Strategy) -> bool:
        if not isinstance(strategy, Constant):
            return False
        self.lookahead = strategy.num_assistant_tokens
        return True


@dataclass
class ConfidencePolicy(_Fixed):
    """Stops when the draft's probability of its last proposal is below a threshold, or at the cap."""

    threshold: float
    cap: int | None = None

    def proposes_more(self, proposed: int, confidence: Callable[[], float]) -> bool:
        """Whether the last proposal was likely enough; an unlikely one is still verified."""
        return not proposed or ((self.cap is None or proposed < self.cap) and confidence() >= self.threshold)

    def update_strategy(self, strategy: Strategy) -> bool:
        if not isinstance(strategy, Confidence):
            return False
        self.threshold, self.cap = strategy.assistant_confidence_threshold, strategy.max_assistant_tokens
        return True


@dataclass
class HeuristicPolicy(_Rigid):
    """Two more tokens after a fully accepted round, one fewer after any other, as in transformers."""

    lookahead: int = _HEURISTIC_START

    def proposes_more(self, proposed: int, confidence: Callable[[], float]) -> bool:
        return proposed < self.lookahead

    def learn(self, proposed: int, accepted: int) -> None:
        if not proposed:
            return
        if accepted == proposed:
            self.lookahead += _HEURISTIC_GAIN
        else:
            self.lookahead = max(self.lookahead - _HEURISTIC_LOSS, 1)


@singledispatch
def policy_for(strategy: Strategy, costs: Costs | None = None, estimates: Estimates | None = None) -> LookaheadPolicy:
    """Return the policy for a new request with a drafting strategy. Register one for each such strategy.

    The automatic lookahead starts from the `estimates` of earlier requests, and updates them.

    Raises:
        SettingsError: the strategy needs step costs, and none were measured.
    """
    raise TypeError(f"no policy is registered for {strategy}")


@policy_for.register
def _(strategy: Constant, costs: Costs | None = None, estimates: Estimates | None = None) -> LookaheadPolicy:
    return ConstantPolicy(strategy.num_assistant_tokens)


@policy_for.register
def _(strategy: Confidence, costs: Costs | None = None, estimates: Estimates | None = None) -> LookaheadPolicy:
    return ConfidencePolicy(strategy.assistant_confidence_threshold, strategy.max_assistant_tokens)


@policy_for.register
def _(strategy: Heuristic, costs: Costs | None = None, estimates: Estimates | None = None) -> LookaheadPolicy:
    return HeuristicPolicy()


@policy_for.register(Auto)
@policy_for.register(Both)
def _(strategy: Auto | Both, costs: Costs | None = None, estimates: Estimates | None = None) -> LookaheadPolicy:
    return AutoPolicy(required(costs), strategy.max_assistant_tokens, estimates or Estimates())


def required(costs: Costs | None) -> Costs:
    """Return the step costs, checked to include the draft's.

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
    """Run the draft loop until the policy stops, for at most `limit` tokens.

    `choose` returns the next proposal after those of this round; `confidence` is the draft's probability of one.
    """
    proposals: list[Proposed] = []
    while len(proposals) < limit and policy.proposes_more(len(proposals), lambda: confidence(proposals[-1])):
        proposals.append(choose(proposals))
    return proposals
