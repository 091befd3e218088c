"""What several runs say together: a median, how far it can be trusted, and sums over all of them.

Every interval that is shown anywhere comes from `median_interval`, and `FORMULA` says how.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from specdemo.records import Record, Trial

LEVEL = 0.95
ENOUGH = 6
_DRAWS = 2000
_WIDE = 1.5  # upper end / lower end: beyond this the median says little

FORMULA = (
    f"median of the runs; interval: the middle {LEVEL * 100:.0f} % of the medians of {_DRAWS:,} random resamples of "
    f"them (bootstrap), from {ENOUGH} runs on"
)


class Interval(Record):
    """A median and its percentile-bootstrap interval; no interval where there are too few runs for one."""

    middle: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        """The median, with the interval in parentheses."""
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
    def wide(self) -> bool:
        """Whether the runs differ so much that the median says little."""
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


@lru_cache(maxsize=256)  # headline, tone, evidence and doubts of a comparison all ask for the same one
def _bootstrapped(values: tuple[float, ...], seed: int) -> Interval:
    middle = float(np.median(values))
    if len(values) < ENOUGH:
        return Interval(middle=middle)
    draws = np.random.default_rng(seed).choice(values, (_DRAWS, len(values)))
    low, high = np.quantile(np.median(draws, axis=1), ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(middle=middle, low=float(low), high=float(high))


class Summary(Record):
    """A summary of trials with the same settings. Shares are of the speculative runs' seconds.

    `other_load` is the median share of the machine's processor time that other processes took.
    """

    speedup: Interval
    speedups: tuple[float, ...]
    identical: bool
    mean_accepted_length: float | None
    acceptance_rate: float | None
    token_acceptance: float | None
    draft_share: float | None
    verify_share: float | None
    other_share: float | None
    other_load: float | None = None


def summarise(done: Sequence[Trial]) -> Summary:
    """The figures of at least one trial: ratios of sums over the trials, not averages of their ratios."""
    speedups = tuple(trial.speedup for trial in done)
    seconds = sum(trial.run_seconds for trial in done)
    draft = _total([trial.draft_seconds for trial in done])
    verify = _total([trial.verify_seconds for trial in done])
    accepted = _total([trial.accepted for trial in done])
    proposed, judged = (_total([getattr(trial, name) for trial in done]) for name in ("proposed", "judged"))
    rounds = _total([trial.rounds for trial in done])
    loads = [trial.other_load for trial in done if trial.other_load is not None]
    return Summary(
        speedup=median_interval(speedups),
        speedups=speedups,
        identical=all(trial.identical for trial in done),
        mean_accepted_length=sum(trial.run_tokens for trial in done) / rounds if rounds else None,
        acceptance_rate=accepted / proposed if accepted is not None and proposed else None,
        token_acceptance=accepted / judged if accepted is not None and judged else None,
        draft_share=draft / seconds if draft is not None else None,
        verify_share=verify / seconds if verify is not None else None,
        other_share=1 - (draft + verify) / seconds if draft is not None and verify is not None else None,
        other_load=float(np.median(loads)) if loads else None,
    )


def _total(seconds: Sequence[float | None]) -> float | None:
    known = [value for value in seconds if value is not None]
    return sum(known) if len(known) == len(seconds) else None
