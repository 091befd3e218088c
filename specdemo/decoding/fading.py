"""Estimates learnt from one verdict after another, with a fading memory, so that a change in the text is noticed."""

from dataclasses import dataclass
from math import exp, log

_OFFSET, _SLOPE = 0.5, 0.5  # log-odds of acceptance: offset + slope · log-odds of the draft's probability
_OFFSET_VARIANCE, _SLOPE_VARIANCE = 1.0, 0.1  # the initial values, and the largest
_DRIFT = 1.01  # by which they grow with every verdict
_SURE, _UNSURE = 0.999, 0.01  # the draft's probabilities are clipped to these
_NO_NEWS = 0.02  # a verdict this close to the expected one teaches nothing
MEMORY = 0.98  # share of a verdict's weight that remains after the next one


@dataclass
class FadingMean:
    """A ratio of sums, such as accepted / judged, in which old terms fade."""

    above: float
    below: float
    memory: float = MEMORY

    @property
    def value(self) -> float:
        """The ratio."""
        return self.above / self.below

    def add(self, above: float, below: float) -> None:
        """Count a new term; all older ones fade a little."""
        self.above = above + self.memory * self.above
        self.below = below + self.memory * self.below

    def forget(self, most: float) -> None:
        """Keep at most this weight."""
        share = min(most / self.below, 1.0)
        self.above, self.below = self.above * share, self.below * share

    def add_run(self, right: int, *, failed: bool) -> None:
        """A run of `right` successes, followed by a failure or not."""
        kept = self.memory**right
        added = (1 - kept) / (1 - self.memory)
        self.above, self.below = added + kept * self.above, added + kept * self.below
        if failed:
            self.add(0, 1)


@dataclass
class Chance:
    """The chance that a proposal is accepted, a logistic function of the log-odds of the draft's probability.

    Learnt one verdict at a time by an extended Kalman filter: a Newton step for the curve's offset and slope, scaled
    by their remaining uncertainty.
    """

    offset: float = _OFFSET
    slope: float = _SLOPE
    var_offset: float = _OFFSET_VARIANCE
    var_slope: float = _SLOPE_VARIANCE
    covariance: float = 0.0

    def forget(self) -> None:
        """Become as uncertain as at first, around the same curve."""
        self.var_offset, self.var_slope, self.covariance = _OFFSET_VARIANCE, _SLOPE_VARIANCE, 0.0

    def of(self, confidence: float) -> float:
        """The chance at this confidence, in log-odds."""
        return 1 / (1 + exp(-(self.offset + self.slope * confidence)))

    def learn(self, confidence: float, accepted: bool) -> None:
        """Learn from one verdict on a proposal of this confidence."""
        chance = self.of(confidence)
        if abs(accepted - chance) < _NO_NEWS:  # nearly always the case with a good draft, and saves time
            return
        offset = self.var_offset + self.covariance * confidence
        slope = self.covariance + self.var_slope * confidence
        weight = chance * (1 - chance)
        gain = 1 / (1 + weight * (offset + slope * confidence))
        self.offset += gain * offset * (accepted - chance)
        self.slope += gain * slope * (accepted - chance)
        self.var_offset = min((self.var_offset - gain * weight * offset**2) * _DRIFT, _OFFSET_VARIANCE)
        self.var_slope = min((self.var_slope - gain * weight * slope**2) * _DRIFT, _SLOPE_VARIANCE)
        limit = 0.99 * (self.var_offset * self.var_slope) ** 0.5  # limiting the variances must not break this one
        self.covariance = max(min((self.covariance - gain * weight * offset * slope) * _DRIFT, limit), -limit)


def log_odds(probability: float) -> float:
    """Of a probability, clipped so that it is finite."""
    bounded = min(max(probability, _UNSURE), _SURE)
    return log(bounded / (1 - bounded))
