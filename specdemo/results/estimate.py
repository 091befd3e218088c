"""The speedup, and an interval for what it would be on a quiet run of this machine.

    speedup = plain seconds / speculative seconds for the same tokens

on the clocks, with prefills excluded and repeats added. The interval is an inference around that ratio. Steps of one
kind (the same prompt and number of proposals) do the same work, so their seconds differ by disturbances alone. Each
run is cut into parts, the same stretch of text on both clocks; how much slower than usual plain decoding was in a
part, compared with speculation, is one observation. Their spread gives the standard error. Two errors that no number
of repeats shows are added: the state of the process, and other programs, which slow down some pass lengths more than
others. docs/figures.md explains every step; `tests/benchmarks/coverage.py` measures how often intervals hold.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from specdemo.records import Comparison, Record, Run, Trial
from specdemo.results import metrics

LEVEL = 0.9  # of all intervals; docs/performance.md has the measured coverage
INTERVAL = f"{LEVEL * 100:.0f} % interval"
BUSY = 0.2  # share of the processor that others took: from here on, the interval shows it more than the machine
ENOUGH = 6  # prompts: from this number on they count as a sample
_PART_SECONDS = 0.25  # longer than a time slice, shorter than most disturbances
_MIN_PARTS = 4  # the standard error of fewer would be a guess
_MIN_PART_STEPS = 2  # a part of one step would show the spread of steps, not of moments
_DEFAULT_ERROR = 0.6  # of too few steps for parts: a factor of 2.7 either way; hand-set
_MAX_ERROR = 3.5  # a factor of 300 either way; files may hold any numbers
# Standard errors (of the logarithm) that no repeat shows; see docs/performance.md for the races behind them.
_STATE = 0.03  # of another process, other moments of the machine
_STATE_SECONDS = 0.125e-3  # the same per seconds of a plain step: short steps vary the most
_LOAD = 0.2  # per share of the processor that other programs took
_LOAD_SECONDS = 0.8e-3  # the same per seconds of a plain step: short ones mostly wait for a late thread

State = Literal["clear", "close", "disturbed"]
Direction = Literal["faster", "slower", "same"]
_Floats = npt.NDArray[np.float64]


class Speedup(Record):
    """`ratio` of the clocks, with the ends of the interval for a quiet run. `other_load` is the share of the
    processor that other programs took, None if unknown. `tokens_per_round` is None if a server does not report its
    passes. `repeats_help` is False if further repeats would hardly narrow the interval.
    """

    ratio: float
    low: float
    high: float
    other_load: float | None = None
    tokens_per_round: float | None = None
    repeats_help: bool = True

    def __str__(self) -> str:
        return f"{self.ratio:.2f}× ({INTERVAL} {self.low:.2f}–{self.high:.2f})"

    @property
    def busy(self) -> bool:
        return (self.other_load or 0.0) > BUSY

    @property
    def state(self) -> State:
        """clear: the interval excludes 1; otherwise, disturbed if other programs were busy, else close."""
        if not self.low <= 1 <= self.high:
            return "clear"
        return "disturbed" if self.busy else "close"

    @property
    def direction(self) -> Direction:
        if self.state != "clear":
            return "same"
        return "faster" if self.low > 1 else "slower"

    @property
    def plain_steps_per_round(self) -> float | None:
        return None if self.tokens_per_round is None else self.tokens_per_round / self.ratio


class _Step(NamedTuple):
    """`kind`: steps of the same kind do the same work."""

    kind: Hashable
    tokens: int
    seconds: float


class _Raced(NamedTuple):
    """A speculative run and its plain neighbours, up to the same number of tokens, with both sides' seconds."""

    plain: list[list[_Step]]
    speculative: list[_Step]
    plain_seconds: float
    seconds: float


def of_comparison(comparison: Comparison) -> Speedup | None:
    """None if a side has no step to compare."""
    tokens, speculative = metrics.common_tokens(comparison), comparison.speculative
    if not tokens:
        return None
    runs = (comparison.plain, speculative)
    plain_steps, rounds = (_until(_steps(run), tokens) if run.passes_known else [] for run in runs)
    race = _Raced([plain_steps], rounds, *(metrics.seconds_to(run, tokens) for run in runs))
    length = metrics.mean_acceptance_length(speculative) if speculative.passes_known else None
    return _speedup([race, *(_raced(trial, 0) for trial in comparison.repeats)], loads(comparison), length)


def loads(comparison: Comparison) -> list[float]:
    """Known shares of the processor that other programs took, during the race and each repeat."""
    shares = (comparison.other_load, *(trial.other_load for trial in comparison.repeats))
    return [share for share in shares if share is not None]


def mean_load(shares: Sequence[float]) -> float | None:
    return sum(shares) / len(shares) if shares else None


def of_trials(trials: Sequence[Trial], prompts: Sequence[Hashable] | None = None, *, tried: int = 1) -> Speedup:
    """Return the speedup of trials with the same settings. If six or more of the `prompts`, one per trial, differ,
    they count as a sample, and the interval covers how much prompts differ; otherwise it is for these prompts.
    The intervals of `tried` settings hold together (Bonferroni's correction), so the best of them may be chosen.
    """
    raced = [_raced(trial, prompt) for trial, prompt in zip(trials, prompts or [0] * len(trials), strict=True)]
    shares = [trial.other_load for trial in trials if trial.other_load is not None]
    rounds = [trial.rounds for trial in trials if trial.rounds is not None]
    length = sum(trial.run_tokens for trial in trials) / sum(rounds) if len(rounds) == len(trials) else None
    by_prompt = defaultdict[Hashable, list[_Raced]](list)
    for prompt, each in zip(prompts or [], raced, strict=False):
        by_prompt[prompt].append(each)
    sample = [*by_prompt.values()] if len(by_prompt) >= ENOUGH else None
    return _speedup(raced, shares, length, sample=sample, tried=tried)


def _steps(run: Run) -> list[_Step]:
    return [
        _Step(None if step.proposed is None else len(step.proposed), len(step.committed), step.seconds)
        for step in run.rounds
    ]


def _until(steps: list[_Step], tokens: int) -> list[_Step]:
    """Return the steps up to the one that commits the last of these tokens."""
    ends = np.cumsum([step.tokens for step in steps])
    return steps[: int(np.searchsorted(ends, tokens)) + 1]


def _raced(trial: Trial, prompt: Hashable) -> _Raced:
    plain = [[_Step((prompt, 0), 1, seconds) for seconds in steps[: trial.tokens]] for steps in trial.plain_steps]
    rounds = [_Step((prompt, proposed), tokens, seconds) for tokens, proposed, seconds in trial.round_steps]
    known = trial.rounds is not None and plain and rounds  # else only totals are
    steps = (plain, _until(rounds, trial.tokens)) if known else ([], [])
    return _Raced(*steps, trial.plain_seconds, trial.seconds)


def _speedup(
    raced: Sequence[_Raced],
    shares: Sequence[float],
    tokens_per_round: float | None,
    *,
    sample: Sequence[Sequence[_Raced]] | None = None,
    tried: int = 1,
) -> Speedup:
    seconds = sum(each.seconds for each in raced)
    ratio = sum(each.plain_seconds for each in raced) / seconds
    load = mean_load(shares)
    if sample is None:
        error = _standard_error(np.array([*_observations(raced)]))
    else:
        plain = np.array([sum(each.plain_seconds for each in of_prompt) for of_prompt in sample])
        speculative = np.array([sum(each.seconds for each in of_prompt) for of_prompt in sample])
        error = _standard_error((plain / plain.sum() - speculative / speculative.sum()) * len(sample))
    fixed = _fixed_error(raced, load or 0.0)
    width = NormalDist().inv_cdf(1 - (1 - LEVEL) / (2 * tried)) * min(math.hypot(error, fixed), _MAX_ERROR)
    return Speedup(
        ratio=ratio,
        low=ratio * math.exp(-width),
        high=ratio * math.exp(width),
        other_load=load,
        tokens_per_round=tokens_per_round,
        repeats_help=error > fixed,
    )


def _standard_error(observations: _Floats) -> float:
    """Return the standard error of their mean, with the variance of Student's t, since they are few."""
    number = len(observations)
    if number < _MIN_PARTS:
        return _DEFAULT_ERROR
    return float(observations.std(ddof=1) / math.sqrt(number) * math.sqrt((number - 1) / (number - 3)))


def _observations(raced: Sequence[_Raced]) -> Iterator[float]:
    """Yield log(pace of plain steps / pace of rounds) for each part of a run. A pace is seconds / usual seconds of
    the same kinds of steps. Without steps, a run is one part.
    """
    if not all(each.speculative for each in raced):
        yield from (math.log(each.plain_seconds / each.seconds) for each in raced)
        return
    plain_usual = _means_by_kind(step for each in raced for run in each.plain for step in run)
    usual = _means_by_kind(step for each in raced for step in each.speculative)
    for each in raced:
        wanted = max(min(each.plain_seconds, each.seconds) / _PART_SECONDS, math.ceil(_MIN_PARTS / len(raced)))
        parts = max(int(min(wanted, len(each.speculative) / _MIN_PART_STEPS)), 1)
        plain = np.mean([_paces(run, plain_usual, parts) for run in each.plain], axis=0)
        yield from np.log(plain / _paces(each.speculative, usual, parts))


def _means_by_kind(steps: Iterable[_Step]) -> dict[Hashable, float]:
    by_kind = defaultdict[Hashable, list[float]](list)
    for step in steps:
        by_kind[step.kind].append(step.seconds)
    return {kind: sum(seconds) / len(seconds) for kind, seconds in by_kind.items()}


def _paces(steps: Sequence[_Step], usual: Mapping[Hashable, float], parts: int) -> _Floats:
    """Return seconds / usual seconds of parts with the same number of steps, shape (parts,)."""
    seconds, expected = np.array([(step.seconds, usual[step.kind]) for step in steps]).T
    return np.array(
        [
            one.sum() / other.sum()
            for one, other in zip(np.array_split(seconds, parts), np.array_split(expected, parts), strict=True)
        ]
    )


def _fixed_error(raced: Sequence[_Raced], load: float) -> float:
    plain = [step.seconds for each in raced for run in each.plain for step in run]
    rate = len(plain) / sum(plain) if plain else 0.0  # several requests at once: only totals are known
    return math.hypot(_STATE + _STATE_SECONDS * rate, (_LOAD + _LOAD_SECONDS * rate) * load)
