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
from statistics import NormalDist, fmean
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from specdemo.records import Comparison, Record, Trial
from specdemo.results import metrics

LEVEL = 0.95  # of all intervals; docs/performance.md has the measured coverage
INTERVAL = f"{LEVEL * 100:.0f} % interval"
BUSY = 0.2  # share of the processor that others took: from here on, the interval shows it more than the machine
ENOUGH = 6  # prompts: from this number on they count as a sample
_PART_SECONDS = 0.25  # longer than a time slice, shorter than most disturbances
_MIN_PARTS = 4  # the standard error of fewer would be a guess
_MIN_PART_STEPS = 2  # a part of one step would show the spread of steps, not of moments
_DEFAULT_ERROR = 0.6  # of too few steps for parts: a factor of 2.7 either way; hand-set
_MAX_ERROR = 3.5  # a factor of 300 either way; files may hold any numbers
# Standard errors (of the logarithm) that no repeat shows; see docs/performance.md for the races behind them.
_STATE = 0.05  # of another process, other moments of the machine
_STATE_SECONDS = 0.12e-3  # the same per seconds of a plain step: short steps vary the most
_LOAD = 0.1  # per share of the processor that other programs took

State = Literal["clear", "close", "disturbed"]
Direction = Literal["faster", "slower", "same"]
_Floats = npt.NDArray[np.float64]
_Step = tuple[Hashable, float]


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


class _Raced(NamedTuple):
    """A speculative run and its plain neighbours, with both sides' seconds for the same number of tokens.

    Steps are pairs of kind and seconds; steps of one kind do the same work. Both lists are empty if only totals are
    known.
    """

    prompt: Hashable
    plain: list[list[_Step]]
    speculative: list[_Step]
    plain_seconds: float
    seconds: float


def of_comparison(comparison: Comparison) -> Speedup | None:
    """None if a side has no step to compare."""
    tokens, runs = metrics.common_tokens(comparison), (comparison.plain, comparison.speculative)
    if not tokens:
        return None
    plain, rounds = (
        [
            (len(step.committed), -1 if step.proposed is None else len(step.proposed), step.seconds)
            for step in run.rounds
        ]
        for run in runs
    )
    known = all(run.passes_known for run in runs)
    steps = ([_until(plain, tokens, 0)], _until(rounds, tokens, 0)) if known else ([], [])
    race = _Raced(0, *steps, *(metrics.seconds_to(run, tokens) for run in runs))
    length = metrics.mean_acceptance_length(comparison.speculative) if known else None
    return _speedup([race, *(_raced(trial, 0) for trial in comparison.repeats)], other_load(comparison), length)


def loads(comparison: Comparison) -> list[float]:
    """Known shares of the processor that other programs took, during the race and each repeat."""
    shares = (comparison.other_load, *(trial.other_load for trial in comparison.repeats))
    return [share for share in shares if share is not None]


def other_load(comparison: Comparison) -> float | None:
    return fmean(shares) if (shares := loads(comparison)) else None


def of_trials(trials: Sequence[Trial], prompts: Sequence[Hashable] | None = None, *, tried: int = 1) -> Speedup:
    """Return the speedup of trials with the same settings. If six or more of the `prompts`, one per trial, differ,
    they count as a sample, and the interval covers how much prompts differ; otherwise it is for these prompts.
    The intervals of `tried` settings hold together (Bonferroni's correction), so the best of them may be chosen.
    """
    raced = [_raced(trial, prompt) for trial, prompt in zip(trials, prompts or [0] * len(trials), strict=True)]
    shares = [trial.other_load for trial in trials if trial.other_load is not None]
    rounds = [trial.rounds for trial in trials if trial.rounds]
    length = sum(trial.run_tokens for trial in trials) / sum(rounds) if len(rounds) == len(trials) else None
    return _speedup(raced, fmean(shares) if shares else None, length, tried)


def _raced(trial: Trial, prompt: Hashable) -> _Raced:
    plain = [_until([(1, 0, seconds) for seconds in steps], trial.tokens, prompt) for steps in trial.plain_steps]
    known = trial.rounds is not None and plain and trial.round_steps
    steps = (plain, _until(trial.round_steps, trial.tokens, prompt)) if known else ([], [])
    return _Raced(prompt, *steps, trial.plain_seconds, trial.seconds)


def _until(rounds: Sequence[tuple[int, int, float]], tokens: int, prompt: Hashable) -> list[_Step]:
    """Return the steps up to the one that commits the last of these tokens, from tokens, proposals and seconds."""
    last = int(np.searchsorted(np.cumsum([committed for committed, *_ in rounds]), tokens))
    return [((prompt, proposed), seconds) for _, proposed, seconds in rounds[: last + 1]]


def _speedup(raced: Sequence[_Raced], load: float | None, tokens_per_round: float | None, tried: int = 1) -> Speedup:
    ratio = sum(each.plain_seconds for each in raced) / sum(each.seconds for each in raced)
    error = _standard_error(np.array([*_observations(raced)]))
    plain = [seconds for each in raced for run in each.plain for _, seconds in run]
    rate = len(plain) / sum(plain) if plain else 0.0  # plain steps a second; 0 if only totals are known
    fixed = math.hypot(_STATE + _STATE_SECONDS * rate, _LOAD * (load or 0.0))
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
    """Yield observations of the logarithm of the speedup, up to a constant.

    From six prompts on, these are the prompts, as in the standard error of a ratio of sums; else parts of runs:
    log(pace of plain steps / pace of rounds), a pace being seconds / usual seconds of the same kinds of steps.
    Without steps, a run is one part.
    """
    if len(prompts := {each.prompt for each in raced}) >= ENOUGH:
        sums = np.array([(each.plain_seconds, each.seconds) for each in raced]).sum(axis=0)
        for prompt in prompts:
            of_prompt = [(each.plain_seconds, each.seconds) for each in raced if each.prompt == prompt]
            shares = np.array(of_prompt).sum(axis=0) / sums
            yield (shares[0] - shares[1]) * len(prompts)
        return
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
    for kind, seconds in steps:
        by_kind[kind].append(seconds)
    return {kind: fmean(seconds) for kind, seconds in by_kind.items()}


def _paces(steps: Sequence[_Step], usual: Mapping[Hashable, float], parts: int) -> _Floats:
    """Return seconds / usual seconds of parts with the same number of steps, shape (parts,)."""
    sums = [part.sum(axis=0) for part in np.array_split([(seconds, usual[kind]) for kind, seconds in steps], parts)]
    return np.array([seconds / expected for seconds, expected in sums])
