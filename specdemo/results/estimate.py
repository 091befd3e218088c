"""The speedup, and an interval for what it would be on a quiet run of this machine.

    speedup = plain seconds / speculative seconds for the same tokens

on the clocks, with prefills excluded and repeats added. The interval is an inference around that ratio. Steps of one
kind (the same prompt and number of proposals) do the same work, so their seconds differ by disturbances alone. Each
run is cut into parts with the same share of its steps; how much slower than usual plain decoding was in a part,
compared with speculation in the same part, is one observation. Their spread gives the standard error, which grows
beside other programs. An error that no number of repeats shows is added: the state of process and machine.
docs/figures.md explains every step; `tests/benchmarks/coverage.py` measures how often intervals hold.
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
BUSY_SHARE = 0.2  # of the processor, taken by others: from here on, they are named beside the headline
SAMPLE_PROMPTS = 6  # from this number on, prompts count as a sample; hand-set: their spread is known to a third
_PART_SECONDS = 0.25  # longer than a time slice, shorter than most disturbances
_MIN_PARTS = 5  # fewer than that, and their spread is a guess
_MIN_PART_STEPS = 2  # a part of one step would show the spread of steps, not of moments
_DEFAULT_ERROR = 0.6  # of too few steps for parts: a factor of 3 either way; hand-set
_MAX_ERROR = 3.5  # a factor of 1,000 either way; files may hold any numbers
# Standard error (of the logarithm) that no repeat shows; docs/performance.md names the races behind it.
_PROCESS_ERROR = 0.05  # of another process, other moments of the machine
_PROCESS_ERROR_SECONDS = 0.12e-3  # the same per seconds of a plain step: short steps vary the most

State = Literal["clear", "close", "disturbed"]
Direction = Literal["faster", "slower", "same"]
_Floats = npt.NDArray[np.float64]
_Step = tuple[Hashable, int, float]  # kind, units of work (1, or a chunk's tokens), seconds


class Speedup(Record):
    """`ratio` of the clocks, with the ends of the interval for a quiet run. `other_load` is the share of the
    processor that other programs took, None if unknown. `tokens_per_round` is None if a server does not report its
    passes. `width_from`: most of the interval's width comes from the spread of runs, which more of them would narrow,
    or from how processes differ.
    """

    ratio: float
    low: float
    high: float
    other_load: float | None = None
    tokens_per_round: float | None = None
    width_from: Literal["runs", "processes"] = "runs"

    def __str__(self) -> str:
        return f"{self.ratio:.2f}× ({INTERVAL} {self.low:.2f}–{self.high:.2f})"

    @property
    def busy(self) -> bool:
        return (self.other_load or 0.0) > BUSY_SHARE

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


class _Timing(NamedTuple):
    """A speculative run and the plain run before it, as steps, with both sides' seconds for the same tokens.

    Steps of one kind do the same work for each unit. Several requests at once are a single step.
    """

    prompt: Hashable
    plain: list[_Step]
    speculative: list[_Step]
    plain_seconds: float
    seconds: float


def of_comparison(comparison: Comparison) -> Speedup | None:
    """None if a side has no step to compare."""
    tokens, runs = metrics.common_tokens(comparison), (comparison.plain, comparison.speculative)
    if not tokens:
        return None
    plain, rounds = (
        [(len(r.committed), -1 if r.proposed is None else len(r.proposed), r.seconds) for r in run.rounds]
        for run in runs
    )
    known = all(run.passes_known for run in runs)
    steps = [_until(each, tokens, 0, passes=known) for each in (plain, rounds)]
    race = _Timing(0, steps[0], steps[1], *(metrics.seconds_to(run, tokens) for run in runs))
    run, repeats = comparison.speculative, comparison.repeats
    passes = [run.passes, *(trial.passes for trial in repeats)]
    decoded = metrics.decoded_tokens(run) + run.hidden_tokens + sum(trial.run_tokens for trial in repeats)
    length = decoded / sum(filter(None, passes)) if all(passes) else None
    load = mean_load((comparison, *repeats))
    return _speedup([race, *(_timing(trial, 0) for trial in repeats)], load, length)


def mean_load(records: Iterable[Comparison | Trial]) -> float | None:
    shares = [record.other_load for record in records if record.other_load is not None]
    return fmean(shares) if shares else None


def of_trials(trials: Sequence[Trial], prompts: Sequence[Hashable] | None = None, *, tried: int = 1) -> Speedup:
    """Return the speedup of trials with the same settings. If six or more of the `prompts`, one per trial, differ,
    they count as a sample, and the interval covers how much prompts differ; otherwise it is for these prompts.
    The intervals of `tried` settings hold together (Bonferroni's correction), so the best of them may be chosen.
    """
    timings = [_timing(trial, prompt) for trial, prompt in zip(trials, prompts or [0] * len(trials), strict=True)]
    passes = [trial.passes for trial in trials if trial.passes]
    length = sum(trial.run_tokens for trial in trials) / sum(passes) if len(passes) == len(trials) else None
    return _speedup(timings, mean_load(trials), length, tried)


def _timing(trial: Trial, prompt: Hashable) -> _Timing:
    """Use one of the plain neighbours, since the other one is the next trial's, too."""
    tokens, passes = trial.tokens, trial.rounds is not None
    if not trial.round_steps or not all(trial.plain_steps) or not trial.plain_steps:
        steps: list[list[_Step]] = [[(prompt, tokens, each)] for each in (trial.plain_seconds, trial.seconds)]
    else:
        plain = [(1, 0, seconds) for seconds in trial.plain_steps[0]]
        steps = [_until(each, tokens, prompt, passes=passes) for each in (plain, trial.round_steps)]
    return _Timing(prompt, steps[0], steps[1], trial.plain_seconds, trial.seconds)


def _until(rounds: Sequence[tuple[int, int, float]], tokens: int, prompt: Hashable, *, passes: bool) -> list[_Step]:
    """Return the steps up to the one that commits the last of these tokens, from tokens, proposals and seconds. A
    server's chunks are no passes; each token counts alike.
    """
    last = int(np.searchsorted(np.cumsum([committed for committed, *_ in rounds]), tokens))
    return [
        ((prompt, proposed), 1, seconds) if passes else (prompt, committed, seconds)
        for committed, proposed, seconds in rounds[: last + 1]
    ]


def _speedup(timings: Sequence[_Timing], load: float | None, length: float | None, tried: int = 1) -> Speedup:
    ratio = sum(each.plain_seconds for each in timings) / sum(each.seconds for each in timings)
    z = NormalDist().inv_cdf(1 - (1 - LEVEL) / (2 * tried))
    single = [each for each in timings if len(each.plain) > 1]  # the rate of several requests at once is no step's
    plain = [seconds for each in single for _, _, seconds in each.plain]
    rate = len(plain) / sum(plain) if plain else 0.0
    runs = _half_width(np.array([*_observations(timings)]), z)
    processes = z * (_PROCESS_ERROR + _PROCESS_ERROR_SECONDS * rate)
    width = min(math.hypot(runs, processes), z * _MAX_ERROR)
    return Speedup(
        ratio=ratio,
        low=ratio * math.exp(-width),
        high=ratio * math.exp(width),
        other_load=load,
        tokens_per_round=length,
        width_from="runs" if runs > processes else "processes",
    )


def _half_width(observations: _Floats, z: float) -> float:
    """Return the half-width of Student's t interval of their mean, at the level of the normal quantile z."""
    number = len(observations)
    if number < _MIN_PARTS:
        return z * _DEFAULT_ERROR
    # Student's quantile by Cornish and Fisher's expansion (Abramowitz and Stegun, 26.7.5)
    cubic, fifth, seventh = z**3 + z, 5 * z**5 + 16 * z**3 + 3 * z, 3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z
    freedom = number - 1
    quantile = z + cubic / (4 * freedom) + fifth / (96 * freedom**2) + seventh / (384 * freedom**3)
    return float(quantile * observations.std(ddof=1) / math.sqrt(number))


def _observations(timings: Sequence[_Timing]) -> Iterator[float]:
    """Yield observations of the logarithm of the speedup, up to a constant.

    From six prompts on, these are the prompts, as in the standard error of a ratio of sums; else parts of runs:
    log(pace of plain steps / pace of rounds), a pace being seconds / mean seconds of the same kinds of steps.
    """
    if len(prompts := dict.fromkeys(each.prompt for each in timings)) >= SAMPLE_PROMPTS:
        sums = np.array([(each.plain_seconds, each.seconds) for each in timings]).sum(axis=0)
        for prompt in prompts:
            of_prompt = [(each.plain_seconds, each.seconds) for each in timings if each.prompt == prompt]
            shares = np.array(of_prompt).sum(axis=0) / sums
            yield (shares[0] - shares[1]) * len(prompts)
        return
    plain_means = _mean_seconds(step for each in timings for step in each.plain)
    means = _mean_seconds(rounds := [step for each in timings for step in each.speculative])
    if len(rounds) < 2 * len(means):
        return  # means of single rounds would show no spread
    freedom = math.sqrt(len(rounds) / (len(rounds) - len(means)))  # each kind's mean takes up a degree
    for each in timings:
        wanted = max(min(each.plain_seconds, each.seconds) / _PART_SECONDS, math.ceil(_MIN_PARTS / len(timings)))
        most = min(len(each.plain), len(each.speculative)) / _MIN_PART_STEPS
        parts = max(int(min(wanted, most)), 1)
        yield from freedom * np.log(_paces(each.plain, plain_means, parts) / _paces(each.speculative, means, parts))


def _mean_seconds(steps: Iterable[_Step]) -> dict[Hashable, float]:
    sums = defaultdict[Hashable, _Floats](lambda: np.zeros(2))
    for kind, units, seconds in steps:
        sums[kind] += (seconds, max(units, 1))
    return {kind: seconds / units for kind, (seconds, units) in sums.items()}


def _paces(steps: Sequence[_Step], means: Mapping[Hashable, float], parts: int) -> _Floats:
    """Return seconds / mean seconds of parts with the same number of steps, shape (parts,)."""
    pairs = [(seconds, means[kind] * max(units, 1)) for kind, units, seconds in steps]
    return np.array([np.divide(*part.sum(axis=0)) for part in np.array_split(pairs, parts)])
