"""Lookahead policies: when a drafter stops proposing and the target verifies.

The automatic one proposes another token while the chance that it is accepted exceeds its cost over the round's,

    reach · a > rate · (draft step + pass(k + 2) − pass(k + 1)).

`reach`: the k proposals so far are right, by what the draft's probabilities meant in recent rounds; `a`: the recent
share of accepted proposals; `rate`: tokens per second of recent rounds or of plain decoding, whichever is higher.
Several more tokens can cost hardly more than one, so any number of them is considered, with a + a² + … on the left.
Where even the best round is slower than plain steps, rounds are plain, with an occasional probe. Step costs are
measured beforehand, so other load on the machine changes no round.
"""

from abc import ABC, abstractmethod
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from specdemo.errors import SettingsError
from specdemo.records import Costs
from specdemo.strategies import Auto, Combined, Confidence, Constant, Strategy

_DISCOUNT = 0.98  # of an outcome's weight with each new one: a passage keeps its character for some 50 tokens
_BIN_EDGES = (0.1, 0.25, 0.5, 0.7, 0.85, 0.95, 0.99)  # of the draft's probabilities; finer where products need it
_PRIOR = 4.0  # weight of the assumptions made before there are outcomes, in outcomes
_PROBE_SHARE = 0.02  # of the time while rounds are plain: the cost of a useless draft
# how often a copy's next token was right after a match of 1 to 8 tokens, rounded: 88 answers of SmolLM2-135M-Instruct
_COPY_RATES = (0.2, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85)
LONGEST_MATCH = len(_COPY_RATES)  # tokens in a suffix tree; longer ones found nothing more in those answers
_DRAFT_GAIN, _DRAFT_WEIGHT = 1.2, 6.0  # of a draft's rounds before there are any; the weight in plain steps
_MIN_DRAFT_GAIN = 0.94  # below 1, since what a stopped draft would gain in easier text is lost; found on 88 answers
_WAIT = 2  # plain steps after a copy that ended: the next often starts a word later; found on 24 tasks that repeat
_UPDATE_ROUNDS = 8  # between updates of the thresholds, which take some 30 µs


class LookaheadPolicy(ABC):
    strategy: Any  # of a live one, which another of its type may replace between rounds

    @abstractmethod
    def proposes_more(self, proposed: int, confidence: Callable[[], float]) -> bool:
        """Whether to propose a token after `proposed` ones; `confidence`, the last one's probability, is lazy."""

    def learn(self, proposed: int, accepted: int) -> None:  # noqa: B027 (most learn nothing)
        """Learn from a round's outcome. The first round is the prefill."""


@dataclass
class ConstantPolicy(LookaheadPolicy):
    strategy: Constant

    def proposes_more(self, proposed: int, confidence: Callable[[], float]) -> bool:
        return proposed < self.strategy.num_assistant_tokens


@dataclass
class ConfidencePolicy(LookaheadPolicy):
    strategy: Confidence

    def proposes_more(self, proposed: int, confidence: Callable[[], float]) -> bool:
        threshold, cap = self.strategy.assistant_confidence_threshold, self.strategy.max_assistant_tokens
        return not proposed or ((cap is None or proposed < cap) and confidence() >= threshold)


@dataclass
class DiscountedMean:
    total: float
    weight: float

    @property
    def value(self) -> float:
        return self.total / self.weight

    def add(self, value: float, weight: float = 1.0) -> None:
        self.total = value + _DISCOUNT * self.total
        self.weight = weight + _DISCOUNT * self.weight


class Calibration:
    """Discounted acceptance rates, binned by the draft's probability of the token."""

    def __init__(self, at_zero: float, at_one: float) -> None:
        """Start with rates that rise linearly between these, at probabilities of 0 and 1."""
        middles = ((low + high) / 2 for low, high in pairwise((0.0, *_BIN_EDGES, 1.0)))
        self._means = [DiscountedMean(_PRIOR * (at_zero + (at_one - at_zero) * x), _PRIOR) for x in middles]

    def acceptance_rate(self, probability: float) -> float:
        return self._means[bisect(_BIN_EDGES, probability)].value

    def learn(self, probability: float, accepted: bool) -> None:
        self._means[bisect(_BIN_EDGES, probability)].add(accepted)


class Estimates:
    def __init__(self) -> None:
        # priors, rounded from fits on answers of SmolLM2-135M-Instruct with its bundled draft
        self.draft = Calibration(0.4, 0.9)
        self.restart()
        self.copies = [DiscountedMean(_PRIOR * rate, _PRIOR) for rate in (0.0, *_COPY_RATES)]  # by matched tokens

    def restart(self) -> None:
        """Forget what holds for one text only."""
        self.acceptance = DiscountedMean(2.4, _PRIOR)  # over all positions: rarely tried ones would never be learnt
        self.rate = DiscountedMean(1.0, 1.0)  # tokens in the time of a plain step, in rounds that copy nothing

    def learn(self, probabilities: Sequence[float], proposed: int, accepted: int) -> None:
        """Learn from the draft's proposals, up to the first rejected one."""
        for index in range(min(accepted + 1, proposed)):
            self.acceptance.add(index < accepted)
            if index < len(probabilities):
                self.draft.learn(probabilities[index], index < accepted)


@dataclass
class AutoPolicy(LookaheadPolicy):
    costs: Costs
    cap: int
    estimates: Estimates = field(default_factory=Estimates)

    def __post_init__(self) -> None:
        self._passes = np.array(self.costs.verify) / self.costs.plain_step
        self._drafts = np.array(self.costs.drafting) / self.costs.plain_step
        self.cap = min(self.cap, len(self._passes) - 1, len(self._drafts) - 1)
        self._reach, self._probabilities = 1.0, list[float]()
        self._until_probe, self._probing, self._rounds = 0.0, False, 0
        self._update_thresholds()

    def proposes_more(self, proposed: int, confidence: Callable[[], float]) -> bool:
        if not proposed:
            self._reach, self._probabilities = 1.0, []
            self._probing = self._thresholds[0] > 1
            return not self._probing or self._until_probe <= 0
        if self._probing:
            return False
        self._probabilities.append(confidence())
        self._reach *= self.estimates.draft.acceptance_rate(self._probabilities[-1])
        return self._reach > self._thresholds[proposed]

    def learn(self, proposed: int, accepted: int) -> None:
        steps = self._passes[min(proposed, self.cap)] + self._drafts[min(proposed, self.cap)]
        self.estimates.rate.add(accepted + 1, steps)
        if proposed:
            self.estimates.learn(self._probabilities, proposed, accepted)
            if self._probing:
                self._until_probe = max(steps - (accepted + 1), self._drafts[1]) / _PROBE_SHARE
        else:
            self._until_probe -= 1
        self._rounds += 1
        if self._probing or self._rounds % _UPDATE_ROUNDS == 0:
            self._update_thresholds()

    def _update_thresholds(self) -> None:
        """Compute, for each number of proposals, the reach above which more pay off; more than 1 if they never do."""
        acceptance = self.estimates.acceptance.value
        # expected tokens of 1, 2, … more proposals, if all before are accepted
        self._gains = gains = np.cumsum(acceptance ** np.arange(1, self.cap + 1))
        self._total = total = self._drafts[: self.cap + 1] + self._passes[: self.cap + 1]
        rate = max(self.estimates.rate.value, 1.0)
        costs_per_token = (((total[k + 1 :] - total[k]) / gains[: self.cap - k]).min() for k in range(1, self.cap))
        first = 0.0 if self._pays() else np.inf
        self._thresholds = [first, *(float(cost) * rate for cost in costs_per_token), np.inf]

    def _pays(self) -> bool:
        return bool(((1 + self._gains) / self._total[1:]).max() > 1)


@dataclass
class CombinedPolicy(AutoPolicy):
    """Weighs a copy against what the draft would add: expected tokens, less those lost in the time that they take.

    A token is worth the time that it takes without copies, since the text must be written either way. Each text gives
    the draft another chance: where one had stopped drafting, the next would hardly ever draft again.
    """

    def __post_init__(self) -> None:
        self.estimates.restart()
        # tokens in a plain step's time, as `rate`
        self._drafting = DiscountedMean(_DRAFT_GAIN * _DRAFT_WEIGHT, _DRAFT_WEIGHT)
        self._copying = DiscountedMean(_PRIOR, _PRIOR)  # accepted tokens of copies over expected ones, in this text
        self._waited, self._expected = 0, 0.0  # plain steps since the last copy; the tokens expected of it
        super().__post_init__()

    def _pays(self) -> bool:
        """By rounds that drafted: a mean acceptance says too little, since a chain ends where the draft is unsure."""
        return self._drafting.value > _MIN_DRAFT_GAIN

    def weigh(self, drafted: int, chances: Sequence[float], *, more: bool, unread: int = 0) -> tuple[int, bool]:
        """Return how many copied tokens should end a round after `drafted` ones; else whether to draft another.

        `more`: another would pay, once the draft has read the tokens that copies and plain steps left `unread`. If
        that takes more than drafting gains, a few plain steps come first.
        """
        rate, gain = max(self.estimates.rate.value, 1.0), self._drafting.value - 1
        # the last two tokens are in the cost of the draft's first step
        whole, rest = divmod(max(unread - 2, 0), len(self._passes))
        reading = self._drafts[1] * (whole * self._passes[-1] + self._passes[rest] - 1)
        waits = more and not drafted and not self._probing and rate * reading > gain and self._waited < _WAIT
        judged = () if self._probing and drafted else chances[: self.cap - drafted]
        expected = self._copying.value * np.cumsum([0.0, *judged])
        passes, total = self._passes[drafted:], self._total[drafted:]
        worth = self._reach * expected - rate * (passes[: len(expected)] - passes[0])
        copied, drafting = int(worth.argmax()), 0.0
        if more and not waits:
            drafting = (self._reach * self._gains[: len(total) - 1] - rate * (total[1:] - total[0])).max()
        if worth[copied] > max(drafting, 0.0):
            self._waited, self._expected = 0, expected[copied]
            return copied, False
        self._waited += waits
        return 0, more and not waits

    def learn(self, proposed: int, accepted: int, *, copied: int = 0) -> None:
        """Learn from a round's drafted tokens; one that `copied` tells nothing about the rate without copies."""
        if copied:
            self.estimates.learn(self._probabilities, proposed, min(accepted, proposed))
            if accepted >= proposed:
                self._copying.add(accepted - proposed, self._expected)
            return
        if proposed:
            self._drafting.add(accepted + 1, self._total[proposed])
        super().learn(proposed, accepted)


def policy_for(strategy: Strategy, costs: Costs | None = None, estimates: Estimates | None = None) -> LookaheadPolicy:
    """Return the policy for a new request; the automatic lookahead starts from the `estimates` and updates them.

    Raises:
        SettingsError: the strategy needs step costs, and the draft's were not measured.
    """
    match strategy:
        case Constant():
            return ConstantPolicy(strategy)
        case Confidence():
            return ConfidencePolicy(strategy)
        case Auto() | Combined():
            if costs is None or costs.draft_step is None:
                raise SettingsError("A draft step's cost is unknown for this pair; choose another policy or drafter.")
            if isinstance(strategy, Auto):
                return AutoPolicy(costs, strategy.max_assistant_tokens, estimates or Estimates())
            return CombinedPolicy(costs, len(costs.verify), estimates or Estimates())
    raise TypeError(f"there is no policy for {strategy}")
