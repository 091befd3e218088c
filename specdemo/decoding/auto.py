"""The automatic lookahead: one rule, by costs.

Propose another token while the chance that it is accepted exceeds its cost over the round's:

    reach · a > rate · (draft step + pass(k + 2) − pass(k + 1))

`reach` is the probability that all k proposals so far are right, a product of one chance each: what the draft's own
probability meant in recent rounds. `a` is the recent share of accepted proposals. `rate` is what time is worth, in
tokens per second: that of recent rounds or of plain decoding, whichever is higher. A pass can cost hardly more for
several further tokens than for one, so the rule holds if it does for any number of them, with a + a² + … on the left.

Where the best round earns less than a plain step, rounds are plain, but for a probe of one proposal now and then. A
copy from the text competes by the same measure, its expected tokens less what its pass costs: see `copied`.

Step costs are those measured before, so the same text is decoded in the same rounds on a busy machine.
"""

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import mul
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specdemo.decoding.indexes import NO_MATCH, Match
from specdemo.records import Costs
from specdemo.strategies import Strategy

_MEMORY = 0.98  # weight of an outcome after the next one: a text's character lasts some 50 tokens
_EDGES = (
    0.1,
    0.25,
    0.5,
    0.7,
    0.85,
    0.95,
    0.99,
)  # of probabilities that are judged alike; finer where products need it
_PRIOR = 4.0  # weight of what is assumed before there are outcomes, in outcomes
_PROBING = 0.02  # share of the time that probes may take while rounds are plain: what a useless draft costs
_EVERY = 8  # rounds between recomputations of the thresholds, which take some 30 µs


@dataclass
class DiscountedMean:
    """A discounted ratio of sums, such as accepted / judged."""

    above: float
    below: float

    @property
    def value(self) -> float:
        return self.above / self.below

    def add(self, above: float, below: float = 1.0) -> None:
        self.above = above + _MEMORY * self.above
        self.below = below + _MEMORY * self.below


class Calibration:
    """What a stated probability means: the discounted share of right ones among those stated about alike."""

    def __init__(self, least: float, most: float) -> None:
        """Begin with the chances `least` at a stated probability of 0 and `most` at 1."""
        edges = (0.0, *_EDGES, 1.0)
        middles = ((low + high) / 2 for low, high in pairwise(edges))
        self._means = [DiscountedMean(_PRIOR * (least + (most - least) * middle), _PRIOR) for middle in middles]

    def chance(self, stated: float) -> float:
        return self._means[bisect(_EDGES, stated)].value

    def learn(self, stated: float, right: bool) -> None:
        self._means[bisect(_EDGES, stated)].add(right)


class Estimates:
    """What rounds taught: chances of the draft's proposals and of copies, and what rounds earned.

    One request can begin with those of the last.
    """

    def __init__(self) -> None:
        # priors, rounded from fits on answers of SmolLM2-135M-Instruct with its bundled draft.
        self.draft = Calibration(0.4, 0.9)
        # a copy's first token after one, two, and more matched tokens, and its later tokens
        self.copies = [Calibration(0, most) for most in (0.4, 0.6, 0.7, 0.75)]
        self.first, self.later = DiscountedMean(2.6, 4), DiscountedMean(3.0, 4)
        self.earned = DiscountedMean(1.0, 1.0)  # tokens, by plain steps' time

    def judge(self, stated: Sequence[float], proposed: int, accepted: int) -> None:
        """Learn from the draft's proposals, up to the first rejected one."""
        for index in range(min(accepted + 1, proposed)):
            (self.later if index else self.first).add(index < accepted)
            if index < len(stated):
                self.draft.learn(stated[index], index < accepted)

    def chances(self, match: Match) -> npt.NDArray[np.float64]:
        """Return, for each prefix of a copy, the probability that all its tokens are right."""
        each = [one.chance(share) for one, share in zip(self._of(match), _shares(match), strict=True)]
        return np.array(list(accumulate(each, mul)))

    def judge_copy(self, match: Match, committed: Sequence[int]) -> None:
        """Learn from what followed a match, whichever source proposed it."""
        for one, share, copied, token in zip(self._of(match), _shares(match), match.tokens, committed, strict=False):
            one.learn(share, copied == token)
            if copied != token:
                return

    def _of(self, match: Match) -> list[Calibration]:
        *first, later = self.copies
        return [first[min(match.size, len(first)) - 1], *[later] * (len(match.tokens) - 1)]


def _shares(match: Match) -> list[float]:
    return [chance / before for chance, before in zip(match.chances, (1.0, *match.chances), strict=False)]


class _Best(NamedTuple):
    """The best constant lookahead's tokens and time per round, in plain steps."""

    tokens: float
    steps: float


@dataclass
class AutoPolicy:
    """A `LookaheadPolicy` for one request, which also chooses between the draft, a copy and nothing.

    It proposes at most `cap` tokens, within the longest measured pass.
    """

    costs: Costs
    cap: int
    estimates: Estimates = field(default_factory=Estimates)

    def __post_init__(self) -> None:
        plain = self.costs.plain_step
        passes = np.array(self.costs.verify)
        # a shorter pass costs no more than a longer one: where it was measured so, other load added to it
        self._passes = np.minimum.accumulate(passes[::-1])[::-1] / plain
        self.cap = min(self.cap, len(passes) - 1)
        lookaheads = range(self.cap + 1)
        self._drafts = np.array([self.costs.drafting(lookahead) or 0.0 for lookahead in lookaheads]) / plain
        self._reach, self._stated = 1.0, list[float]()
        self._until_probe, self._probing, self._rounds = 0.0, False, 0
        for step in self.costs.drafted:
            self.estimates.judge(step.probabilities, len(step.probabilities), step.accepted)
        self._reckon()

    def proposes_more(self, proposed: int, confidence: Callable[[], float]) -> bool:
        if not proposed:
            self._reach, self._stated = 1.0, []
            self._probing = self._needed[0] > 1
            return not self._probing or self._until_probe <= 0
        if proposed >= self.cap or self._probing:
            return False
        self._stated.append(confidence())
        self._reach *= self.estimates.draft.chance(self._stated[-1])
        return self._reach > self._needed[proposed]

    def learn(self, proposed: int, accepted: int, *, copy: bool = False) -> None:
        """Learn from a round; `copy`: the draft did not propose it."""
        steps = self._passes[min(proposed, self.cap)] + (0 if copy else self._drafts[min(proposed, self.cap)])
        self.estimates.earned.add(accepted + 1, steps)
        if proposed and not copy:
            self.estimates.judge(self._stated, proposed, accepted)
            if self._probing:
                self._until_probe = max(steps - (accepted + 1), self._drafts[1]) / _PROBING
        else:
            self._until_probe -= 1
        self._rounds += 1
        if self._probing or self._rounds % _EVERY == 0:
            self._reckon()

    def update_strategy(self, strategy: Strategy) -> bool:
        return False

    def copied(self, match: Match) -> Match:
        """Return what to propose of a copy, cut where it stops paying off; `NO_MATCH` leaves the round to the draft.

        A round is worth its expected tokens less what its time would earn otherwise.
        """
        most = min(len(match.tokens), self.cap)
        if not most:
            return NO_MATCH
        worth = 1 - self._rate * self._passes[0]
        if self._needed[0] <= 1:
            worth = max(worth, self._best.tokens - self._rate * self._best.steps)
        values = 1 + self.estimates.chances(match)[:most].cumsum() - self._rate * self._passes[1 : most + 1]
        k = int(values.argmax())
        return (
            match._replace(tokens=match.tokens[: k + 1], chances=match.chances[: k + 1])
            if values[k] > worth
            else NO_MATCH
        )

    def _reckon(self) -> None:
        """Compute, for each number of proposals, the reach above which more pay off; above 1, they never do."""
        first, later = self.estimates.first.value, self.estimates.later.value
        lookaheads = np.arange(self.cap)
        gains = np.cumsum(later**lookaheads)  # of 1, 2, … more proposals, if all before are right and one more is
        tokens, steps = 1 + first * gains, self._drafts[1:] + self._passes[1 : self.cap + 1]
        at = int((tokens / steps).argmax())
        self._best = _Best(float(tokens[at]), float(steps[at]))
        pays = self._best.tokens > self._best.steps
        self._rate = max(self.estimates.earned.value, 1.0)
        total = self._drafts + self._passes[: self.cap + 1]
        more = [
            float(((total[k + 1 :] - total[k]) / gains[: self.cap - k]).min()) * self._rate / later
            for k in range(1, self.cap)
        ]
        self._needed = [0.0 if pays else np.inf, *more, np.inf]
