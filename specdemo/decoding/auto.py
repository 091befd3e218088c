"""The automatic lookahead: as many proposals as pay, given what steps cost here and how often drafts are accepted.

A round that has k proposals, all of which are accepted with probability R, may add m more. That takes m draft steps
and a target pass over k + 1 + m tokens instead of k + 1, and commits R · (a + a² + … + aᵐ) more tokens, where a is
the acceptance of the proposals to come. Time has a price: what recent rounds committed in it, ρ tokens a second, or
plain decoding if that is more. So another proposal pays where, for some m,

    R · (a + … + aᵐ) > ρ · (m · draft + pass(k + 1 + m) − pass(k + 1))

as in any renewal process whose reward for its time is to be the highest; m above 1 looks past a cliff in the cost of
passes. R is the product of the chances of the proposals so far, each learnt from the draft's own probability and the
verdicts. Everything learnt fades, so that a change in the text is noticed.

It begins with what the rounds taught in which draft steps were timed. Without any, rounds begin short, and each
proposal that is accepted lets them grow, since a draft may be sure of itself and wrong.

Passes keep their length where a change would cost more than superfluous tokens do (see `width`), so up to
that length another proposal costs a draft step only.

Where not even a first proposal pays, rounds are plain, apart from probes of one proposal. A probe that loses time is
followed by so many plain rounds that probing takes no more than a small share of the time.

Clocks are not read while decoding: lookaheads follow from step costs and verdicts alone, and can be reproduced.
The constants were chosen on simulated costs with what the bundled draft proposes, as a compromise between what good
pairs lose until they are trusted and useless ones until they are not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log

import numpy as np

from specdemo.decoding.width import rising
from specdemo.records import Costs

_OFFSET, _SLOPE = 0.5, 0.5  # log-odds of acceptance: one plus so many times those of the draft's probability
_OFFSET_VARIANCE, _SLOPE_VARIANCE = 1.0, 0.1  # before anything is known, and at most
_DRIFT = 1.01  # by which they grow with every verdict
_TRUSTED = 1  # proposals in a round before any was accepted; each that is allows two more
_SURE, _UNSURE = 0.999, 0.01  # the draft's probabilities beyond which it is not believed
_NO_NEWS = 0.02  # a verdict so near to what was expected teaches nothing
_MEMORY = 0.98  # of a verdict, that remains after the next one
_ROUND_MEMORY = 0.95  # of a round's tokens and seconds
_PROBING = 0.015  # of the time
_GROWING = 0.5  # of what a change of the passes' length costs, that the proposal pays which asks for it
_EVERY = 8  # rounds after which prices are computed anew, which takes time


class Auto:
    """A `LookaheadPolicy` for one request."""

    def __init__(self, costs: Costs, cap: int) -> None:
        """A policy that proposes at most `cap` tokens, nor more than passes were measured for."""
        assert costs.later_draft_step is not None, "checked when the policy was chosen"
        self._draft = costs.later_draft_step
        self._first_draft = costs.first_draft_step or self._draft
        self._passes = rising(np.array(costs.verify))
        self._plain = float(self._passes[0])
        self._cap = min(cap, len(self._passes) - 1)
        self._change = costs.length_change or 0.0
        self._fed = 1
        self._powers = np.arange(self._cap)
        self._prices = [self._seconds_of_more(fed) for fed in range(self._cap + 2)]
        self._chance = _Chance()
        self._first, self._later = _Mean(1.4, 2), _Mean(3.2, 4)
        self._earned = _Mean(1, self._plain, _ROUND_MEMORY)
        self._trusted, self._rounds = _TRUSTED, 0
        self._probing, self._wait = False, 0.0  # plain rounds until the next probe
        self._reach, self._confidences = 1.0, list[float]()
        self._needed = list[float]()
        self._study(costs)

    def _study(self, costs: Costs) -> None:
        """Learn from the rounds in which draft steps were timed, and price the first proposals."""
        for step in costs.drafted:
            self._confidences = [_log_odds(probability) for probability in step.probabilities]
            self.learn(len(self._confidences), step.accepted, len(self._confidences) + 1)
        self._fed, self._rounds = 1, 0
        self._price()
        if costs.drafted and self._needed[0] >= 1:
            self._rest(self._first_draft + float(self._passes[1]) + self._change - self._plain)

    def goes_on(self, proposed: int, confidence: Callable[[], float]) -> bool:
        """While another proposal pays."""
        if not proposed:
            return self._begins()
        if proposed >= min(self._cap, self._trusted) or self._probing:
            return False
        self._confidences.append(_log_odds(confidence()))
        self._reach *= self._chance.of(self._confidences[-1])
        return self._reach > self._needed[proposed]

    def learn(self, proposed: int, accepted: int, fed: int) -> None:
        """Learn from the proposals that were judged: the accepted ones and the first after them."""
        before, self._fed = self._fed, min(fed, self._cap + 1)
        if not proposed:
            self._wait -= 1
            self._earned.add(1, self._plain)
            return
        for index, confidence in enumerate(self._confidences[: accepted + 1]):
            self._chance.learn(confidence, index < accepted)
        self._first.add(min(accepted, 1), 1)
        self._later.add_run(max(accepted - 1, 0), failed=0 < accepted < proposed)
        self._trusted += 2 * accepted
        changed = before != self._fed
        seconds = float(self._passes[self._fed - 1]) + self._change * changed
        seconds += self._first_draft + (proposed - 1) * self._draft
        self._earned.add(accepted + 1, seconds)
        if self._probing:
            self._rest(seconds - (accepted + 1) * self._plain)
        self._rounds += 1
        if changed or self._rounds % _EVERY == 0:
            self._price()

    def _rest(self, lost: float) -> None:
        """Stay plain until a probe that loses so many seconds is a small share of the time."""
        lost += self._first_draft + self._change  # a draft that rested has text to read; plain passes are shorter
        self._wait = max(lost, 0) / (_PROBING * self._plain)

    def _begins(self) -> bool:
        """Whether the round proposes anything."""
        self._reach = 1.0
        self._confidences.clear()
        self._probing = self._needed[0] >= 1
        return not self._probing or self._wait <= 0

    def _seconds_of_more(self, fed: int) -> np.ndarray:
        """What m more proposals than k take, after a pass over so many tokens; shape (cap, cap), by k and m - 1."""
        tokens = np.arange(1, self._cap + 2)
        filled = self._passes[np.clip(tokens, fed, len(tokens)) - 1]
        filled = filled + _GROWING * self._change * (tokens > fed)
        passes = np.minimum(filled, self._passes[: len(tokens)] + self._change)
        k, m = np.ogrid[: self._cap, 1 : self._cap + 1]
        more = np.asarray(passes[np.minimum(k + m, self._cap)] - passes[k] + m * self._draft)
        more[0] += self._first_draft - self._draft
        more[k + m > self._cap] = np.inf
        return more

    def _price(self) -> None:
        """For each number of proposals, how likely they must all be accepted for more to pay."""
        gains = (self._later.value**self._powers).cumsum()
        needed = (self._prices[self._fed] / gains).min(axis=1) * max(self._earned.value, 1 / self._plain)
        self._needed = (needed / self._later.value).tolist()
        self._needed[0] = float(needed[0]) / self._first.value


@dataclass
class _Mean:
    """A ratio of sums, such as accepted / judged, in which what is old fades."""

    above: float
    below: float
    memory: float = _MEMORY

    @property
    def value(self) -> float:
        return self.above / self.below

    def add(self, above: float, below: float) -> None:
        self.above = above + self.memory * self.above
        self.below = below + self.memory * self.below

    def add_run(self, right: int, *, failed: bool) -> None:
        """So many successes one after the other, and then a failure or not."""
        kept = self.memory**right
        added = (1 - kept) / (1 - self.memory)
        self.above, self.below = added + kept * self.above, added + kept * self.below
        if failed:
            self.add(0, 1)


@dataclass
class _Chance:
    """The chance that a proposal is accepted, by the log-odds of the draft's probability: a logistic curve.

    It is learnt one verdict at a time by the extended Kalman filter: a Newton step for the curve's offset and slope,
    scaled by how unsure both still are.
    """

    offset: float = _OFFSET
    slope: float = _SLOPE
    var_offset: float = _OFFSET_VARIANCE
    var_slope: float = _SLOPE_VARIANCE
    covariance: float = 0.0

    def of(self, confidence: float) -> float:
        return 1 / (1 + exp(-(self.offset + self.slope * confidence)))

    def learn(self, confidence: float, accepted: bool) -> None:
        chance = self.of(confidence)
        if abs(accepted - chance) < _NO_NEWS:  # nearly always so where the draft is good, and this takes time
            return
        offset = self.var_offset + self.covariance * confidence
        slope = self.covariance + self.var_slope * confidence
        weight = chance * (1 - chance)
        gain = 1 / (1 + weight * (offset + slope * confidence))
        self.offset += gain * offset * (accepted - chance)
        self.slope += gain * slope * (accepted - chance)
        self.var_offset = min((self.var_offset - gain * weight * offset**2) * _DRIFT, _OFFSET_VARIANCE)
        self.var_slope = min((self.var_slope - gain * weight * slope**2) * _DRIFT, _SLOPE_VARIANCE)
        limit = 0.99 * (self.var_offset * self.var_slope) ** 0.5  # the variances' limits must not break this one
        self.covariance = max(min((self.covariance - gain * weight * offset * slope) * _DRIFT, limit), -limit)


def _log_odds(probability: float) -> float:
    bounded = min(max(probability, _UNSURE), _SURE)
    return log(bounded / (1 - bounded))
