"""Intervals, what may be said by them, and those of medians of whole runs.

Speedups have theirs from steps, in `speedups`; rates of a load run, and trials of earlier versions, which are only
totals, from `median_interval`. `FORMULA` says how.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from specdemo.records import Record

LEVEL = 0.95
ENOUGH = 6
_DRAWS = 2000
SAME = 0.02  # within this of 1× neither side is called faster
_EVEN = 1.1  # two sides are about even if the interval ends within this of 1×
_WIDE = 1.5  # upper end / lower end: beyond this the middle says little

FORMULA = (
    f"median of the runs; interval: the middle {LEVEL * 100:.0f} % of the medians of {_DRAWS:,} random resamples of "
    f"them (bootstrap), from {ENOUGH} runs on"
)


Call = Literal["faster", "slower", "about even", "too noisy to call"]


class Interval(Record):
    """An estimate and its interval; no interval where there are too few runs for one.

    `limit`: more than this is impossible, so that something must have disturbed the measurement.
    """

    middle: float
    low: float | None = None
    high: float | None = None
    limit: float | None = None

    @property
    def value(self) -> float:
        """The estimate itself."""
        return self.middle

    def __str__(self) -> str:
        """The estimate, with the interval in parentheses."""
        return f"{self.middle:.2f}×" + (f" ({self.ends})" if self.known else "")

    @property
    def known(self) -> bool:
        """Whether there were enough runs for an interval."""
        return self.low is not None and self.high is not None

    @property
    def ends(self) -> str:
        """The interval in words; empty if there is none."""
        if self.low is None or self.high is None:
            return ""
        return f"{LEVEL * 100:.0f} % interval {self.low:.2f}–{self.high:.2f}"

    @property
    def impossible(self) -> bool:
        """Whether it is more than can be."""
        return self.limit is not None and self.middle > self.limit

    @property
    def call(self) -> Call:
        """What may be said of a speedup: that a side is faster only where the interval leaves no doubt."""
        if self.low is None or self.high is None or self.impossible:
            return "too noisy to call"
        if self.low > 1 and self.middle >= 1 + SAME:
            return "faster"
        if self.high < 1 and self.middle <= 1 - SAME:
            return "slower"
        return "about even" if self.low >= 1 / _EVEN and self.high <= _EVEN else "too noisy to call"

    @property
    def wide(self) -> bool:
        """Whether it is so wide that the middle says little."""
        return self.low is not None and self.high is not None and self.high > _WIDE * self.low

    @property
    def includes_one(self) -> bool:
        """Whether both faster and slower are possible."""
        return self.low is not None and self.high is not None and self.low <= 1 <= self.high


def median_interval(values: Sequence[float], seed: int = 0) -> Interval:
    """The median of at least one value; from six values on, with a seeded bootstrap interval (Efron 1979).

    With fewer, not even the range from least to greatest covers the median at this level.
    """
    return _bootstrapped(tuple(values), seed)


@lru_cache(maxsize=256)
def _bootstrapped(values: tuple[float, ...], seed: int) -> Interval:
    middle = float(np.median(values))
    if len(values) < ENOUGH:
        return Interval(middle=middle)
    draws = np.random.default_rng(seed).choice(values, (_DRAWS, len(values)))
    low, high = np.quantile(np.median(draws, axis=1), ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(middle=middle, low=float(low), high=float(high))
