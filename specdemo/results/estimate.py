"""The speedup with its 95 % interval, and how sure its direction is.

    speedup = tokens per round × seconds of a plain step / seconds of a round

Tokens and rounds are counted, so only the two times are uncertain. Each is estimated from medians over a quarter of a
second, which single slow steps do not move. Other programs come and go more slowly than steps do, so the spread of
these medians gives the standard error (the method of batch means). Two more errors are added that no race shows,
however long: the state of process and machine, and that other programs slow wide passes down the most. Beside other
programs, counts and step costs give a second estimate, which a busy machine hardly moves. It counts only if its error
in quiet races on this machine is known. docs/figures.md explains every step;
`tests/benchmarks/coverage.py` measures how often intervals contain the true speedup.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from specdemo.records import Comparison, Costs, Record, Run, Trial
from specdemo.results import metrics

Z = 1.96  # standard errors on either side of a 95 % interval
_CLEAR_EFFECT = 0.02  # within this of 1×, neither side is called faster: nobody would notice
ABOVE = 1.1  # × τ: more is impossible, as a round reads the weights at least once; a tenth for clocks and caches
LITTLE = 0.05  # within this of 1×, no probable side is named: it would be wrong every other time
_PROBABLE = 1.3  # standard errors from 1×: the side is right in nine cases of ten
EVEN = 1.15  # "about even": both ends lie within this factor of 1×; readers notice a larger difference
BUSY = 0.2  # share of the processor that others took; below it the race's own interval suffices
_PART_SECONDS = 0.25  # longer than a time slice, shorter than most disturbances
_MIN_PARTS = 4  # the standard error of fewer would be a guess
_MIN_PART_STEPS = 4  # on average: a median of fewer is not robust
_MAX_ERROR = 3.5  # standard error: a factor of a thousand either way; files may hold any numbers
_BOUND_RATIO = 1000  # upper end / lower end; above it, only the upper one means something
_DEFAULT_ERROR = 0.4  # of a side with too few steps for parts: a factor of 2.2 either way; hand-set
# Standard errors (of the logarithm) that no race shows, from repeated quiet races of both bundled pairs: the same
# request was 1.8 or 2.3 times as fast, depending on what its process had done before; short steps vary the most.
_STATE = 0.03
_STATE_SECONDS = 0.125e-3  # per seconds of a plain step
_LOAD = 0.2  # per share of the processor that other programs took
_LOAD_SECONDS = 0.8e-3  # the same per seconds of a plain step: short ones mostly wait for a late thread
ENOUGH = 6  # prompts: from this number on they count as a sample
_MIN_CHECKS = 3  # quiet races with a known prediction error; the spread of fewer would be a guess

INTERVAL = f"95 % interval: {Z} standard errors"
_RATIO = f"tokens per round × plain step / round, in seconds, which are averages of medians over {_PART_SECONDS:g} s"
TRIALS_FORMULA = f"{_RATIO}; {INTERVAL}"
FORMULA = f"{_RATIO}; beside other programs averaged with τ / (d(γ) + v(γ+1)) of step costs; {INTERVAL}"

Strength = Literal["clear", "probable", "even", "uncertain", "noisy"]
Direction = Literal["faster", "slower", "same"]
_Floats = npt.NDArray[np.float64]


class Interval(Record):
    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.strength == "noisy":
            return f"at most {self.high:.2f}×"
        return f"{self.middle:.2f}× (95 % interval {self.low:.2f}–{self.high:.2f})"

    @property
    def strength(self) -> Strength:
        """clear: the interval excludes 1; probable: the side is right in nine cases of ten; even: both ends are close
        to 1; uncertain: none of these; noisy: only a bound is known.
        """
        if self.high > _BOUND_RATIO * self.low:
            return "noisy"
        distance, error = abs(math.log(self.middle)), math.log(self.high / self.low) / (2 * Z)
        if not self.low <= 1 <= self.high and distance >= math.log(1 + _CLEAR_EFFECT):
            return "clear"
        if distance > _PROBABLE * error and distance >= math.log(1 + LITTLE):
            return "probable"
        return "even" if self.low >= 1 / EVEN and self.high <= EVEN else "uncertain"

    @property
    def direction(self) -> Direction:
        if self.strength not in ("clear", "probable"):
            return "same"
        return "faster" if self.middle > 1 else "slower"

    @property
    def call(self) -> str:
        if self.strength == "probable":
            return f"probably {self.direction}"
        undecided = {"even": "about even", "uncertain": "not certain", "noisy": "too noisy to call"}
        return undecided.get(self.strength, self.direction)


class Speedup(Interval):
    """A speedup with its factors: `middle` = `tokens_per_round` / `plain_steps_per_round`, of `plain_step` seconds.

    `tokens_per_round` is None if a server does not report its passes. `measured` is the estimate from timed `steps`
    alone; None if impossible. `expected` is the one from counts and step costs, which counts only beside other
    programs; None without step costs.
    """

    steps: int
    plain_step: float
    tokens_per_round: float | None
    measured: float | None
    expected: float | None = None
    counts_expected: bool = False

    @property
    def plain_steps_per_round(self) -> float | None:
        return None if self.tokens_per_round is None else self.tokens_per_round / self.middle


def limit_of(tokens_per_round: float | None) -> float:
    """Return the speedup above which a measurement is impossible."""
    return math.inf if tokens_per_round is None else ABOVE * tokens_per_round


def _standard_error(deviations: _Floats) -> float:
    """Return the standard error of a sum from its terms' deviations, widened as Student's t is for so few terms."""
    number = len(deviations)
    return float(math.sqrt((deviations**2).sum() * number / (number - 3)))


class _Step(NamedTuple):
    """One timed step: the number of its prompt, proposals (-1 if unknown), committed tokens and seconds."""

    prompt: int
    proposed: int
    tokens: int
    seconds: float


def _until(steps: list[_Step], tokens: int) -> list[_Step]:
    """Return the steps up to the one that commits the last of these tokens."""
    ends = np.cumsum([step.tokens for step in steps])
    return steps[: int(np.searchsorted(ends, tokens)) + 1]


def _merged(steps: list[_Step]) -> list[_Step]:
    """Return a server's run as one step: its chunks do not arrive pass by pass."""
    totals = sum(step.tokens for step in steps), sum(step.seconds for step in steps)
    return [_Step(step.prompt, -1, *totals) for step in steps[:1]]


class _Side:
    """One side's tokens and estimated seconds by prompt, its number of steps, and its relative standard error."""

    def __init__(self, runs: Iterable[list[_Step]]) -> None:
        steps = [*chain.from_iterable(runs)]
        prompts, proposed, tokens, times = zip(*steps, strict=True)
        usual = _medians_by_kind([*zip(prompts, proposed, strict=True)], times)
        medians = _medians_of_parts(np.array(times) / usual, sum(times))
        parts = len(medians)
        self.error = _standard_error((medians - medians.mean()) / parts) if parts >= _MIN_PARTS else _DEFAULT_ERROR
        self.steps = len(steps)
        self.tokens = np.bincount(prompts, tokens)
        self.seconds = np.bincount(prompts, usual * math.exp(medians.mean()))


def _medians_by_kind(kinds: Sequence[Hashable], seconds: Sequence[float]) -> _Floats:
    """Return for each step the median seconds of its kind."""
    by_kind: dict[Hashable, list[float]] = {}
    for kind, time in zip(kinds, seconds, strict=True):
        by_kind.setdefault(kind, []).append(time)
    medians = {kind: np.median(times) for kind, times in by_kind.items()}
    return np.array([medians[kind] for kind in kinds])


def _medians_of_parts(factors: _Floats, seconds: float) -> _Floats:
    """Return logarithms of the medians of parts of about `_PART_SECONDS`, or shorter ones if they are few. All have
    the same number of steps, since a single slow step could last longer than a part.
    """
    most = len(factors) / _MIN_PART_STEPS if seconds < _PART_SECONDS * len(factors) else len(factors)
    number = min(max(seconds / _PART_SECONDS, _MIN_PARTS), most)
    return np.log([np.median(part) for part in np.array_split(factors, max(int(number), 1))])


def of_comparison(comparison: Comparison) -> Speedup | None:
    """None if a side has no step to compare."""
    tokens = metrics.common_tokens(comparison)
    if not tokens:
        return None
    plain, speculative = (_until(_steps(run), tokens) for run in (comparison.plain, comparison.speculative))
    plain_repeats, repeats = _runs(comparison.repeats, [0] * len(comparison.repeats))
    return _speedup(
        [plain, *plain_repeats],
        [speculative, *repeats],
        loads(comparison),
        passes=comparison.speculative.passes_known,
        expected=expected_speedup(comparison, comparison.costs),
        error_of_expected=_error_of_predictions(comparison),
    )


def loads(comparison: Comparison) -> list[float]:
    """Known shares of the processor that other programs took, during the race and each repeat."""
    shares = (comparison.other_load, *(trial.other_load for trial in comparison.repeats))
    return [share for share in shares if share is not None]


def of_trials(trials: Sequence[Trial], prompts: Sequence[Hashable] | None = None) -> Speedup:
    """Return the speedup of trials with the same settings. If six or more of the `prompts`, one per trial, differ,
    they count as a sample, and the interval covers how much prompts differ; otherwise it is for these prompts.
    """
    numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts or [None]))}
    plain, speculative = _runs(trials, [numbers[prompt] for prompt in prompts or [None] * len(trials)])
    passes = all(trial.rounds is not None for trial in trials)
    shares = [trial.other_load for trial in trials if trial.other_load is not None]
    return _speedup(plain, speculative, shares, passes=passes)


def _steps(run: Run) -> list[_Step]:
    return [
        _Step(0, -1 if step.proposed is None else len(step.proposed), len(step.committed), step.seconds)
        for step in run.rounds
    ]


def _runs(trials: Sequence[Trial], prompts: Sequence[int]) -> tuple[list[list[_Step]], list[list[_Step]]]:
    """Return the plain and the speculative runs; a plain run counts once, even as neighbour of two trials."""
    plain, speculative = list[list[_Step]](), list[list[_Step]]()
    for trial, prompt in zip(trials, prompts, strict=True):
        if not trial.plain_steps or not trial.round_steps:  # several requests at once: only totals are known
            plain.append([_Step(prompt, -1, trial.tokens, trial.plain_seconds)])
            speculative.append([_Step(prompt, -1, trial.tokens, trial.seconds)])
            continue
        for run in ([_Step(prompt, 0, 1, seconds) for seconds in steps] for steps in trial.plain_steps):
            if run not in plain[-1:]:
                plain.append(run)
        rounds = [_Step(prompt, proposed, tokens, seconds) for tokens, proposed, seconds in trial.round_steps]
        speculative.append(_until(rounds, trial.tokens))
    return plain, speculative


def expected_speedup(comparison: Comparison, costs: Costs | None) -> float | None:
    """Return the speedup if a race's own rounds took these step costs; None if a round's cost is unknown."""
    settings, run = comparison.settings, comparison.speculative
    uncached = settings.kv_cache == "off"  # step costs are measured with a KV cache
    if costs is None or uncached or not run.rounds or not run.passes_known:
        return None
    free, seconds = not settings.strategy.drafter.model, 0.0
    for step in run.rounds:
        cost = None if step.proposed is None else costs.round_cost(len(step.proposed), free=free)
        if cost is None:
            return None
        seconds += cost
    return metrics.decoded_tokens(run) / seconds


def _error_of_predictions(comparison: Comparison) -> float | None:
    """Return the standard error of predictions from step costs (of their logarithm), by their errors in quiet races;
    None unless other programs disturbed this race.
    """
    checks = comparison.costs.checks if comparison.costs is not None else ()
    if max(loads(comparison), default=0.0) <= BUSY or len(checks) < _MIN_CHECKS:
        return None
    # minus 2, since the mean square of so few says little about the next error
    return max(math.sqrt(sum(check**2 for check in checks) / (len(checks) - 2)), _STATE)


class RoundCosts(NamedTuple):
    """In plain steps: a draft step, drafting in an average round, and the rest of it.

    `lookahead` is None if rounds propose different numbers of tokens.
    """

    draft_step: float | None
    drafting: float | None
    verify: float | None
    lookahead: int | None
    source: Literal["in this run", "measured separately"]


def round_costs(comparison: Comparison, speedup: Speedup | None) -> RoundCosts | None:
    """Return the run's own costs if its engine times drafting, with speedup = τ / (drafting + verify); else step
    costs, or None without any.
    """
    rounds, strategy, costs = comparison.speculative.rounds, comparison.settings.strategy, comparison.costs
    model, lookahead = strategy.drafter.model, None if comparison.moves else strategy.fixed_lookahead
    cost = speedup.plain_steps_per_round if speedup is not None else None
    if cost is None or any(step.draft_seconds is None for step in rounds):
        if costs is None:
            return None
        verify = None if lookahead is None else metrics.verify_cost(costs, lookahead + 1)
        draft_step = metrics.draft_cost(costs) if model else None
        return RoundCosts(draft_step, None, verify, lookahead, "measured separately")
    if not model:
        return RoundCosts(None, None, cost, lookahead, "in this run")
    kinds = [step.proposed for step in _steps(comparison.speculative)]
    draft_seconds = _medians_by_kind(kinds, [step.draft_seconds or 0.0 for step in rounds]).sum()
    seconds = _medians_by_kind(kinds, [step.seconds for step in rounds]).sum()
    drafting, proposed = cost * float(draft_seconds / seconds), sum(kinds)
    draft_step = drafting * len(rounds) / proposed if proposed else None
    return RoundCosts(draft_step, drafting, cost - drafting, lookahead, "in this run")


def _speedup(
    plain_runs: Iterable[list[_Step]],
    speculative_runs: Iterable[list[_Step]],
    loads: Sequence[float],
    *,
    passes: bool,
    expected: float | None = None,
    error_of_expected: float | None = None,
) -> Speedup:
    if not passes:
        plain_runs, speculative_runs = map(_merged, plain_runs), map(_merged, speculative_runs)
    plain, speculative = _Side(plain_runs), _Side(speculative_runs)
    tokens, seconds = speculative.tokens.sum(), speculative.seconds.sum()
    plain_seconds = plain.seconds / plain.tokens * speculative.tokens  # by prompt, for the same tokens
    ratio, plain_step = float(plain_seconds.sum() / seconds), float(plain_seconds.sum() / tokens)
    error = math.hypot(plain.error, speculative.error)
    if len(plain_seconds) >= ENOUGH:
        error = _standard_error(plain_seconds / plain_seconds.sum() - speculative.seconds / seconds)
    load = sum(loads) / len(loads) if loads else 0.0
    state = _STATE + _STATE_SECONDS / plain_step
    error = math.hypot(error, state, (_LOAD + _LOAD_SECONDS / plain_step) * load)
    length = float(tokens / speculative.steps) if passes else None
    limit = limit_of(length)
    estimates = [(math.log(ratio), error)] if ratio <= limit else []
    if expected is not None and error_of_expected is not None:
        estimates.append((math.log(expected), error_of_expected))
    middle, low, high = _averaged(estimates) if estimates else (limit, limit * math.exp(-2 * Z * _MAX_ERROR), limit)
    return Speedup(
        middle=middle,
        low=low,
        high=min(high, max(limit, middle)),
        steps=plain.steps + speculative.steps,
        tokens_per_round=length,
        measured=ratio if ratio <= limit else None,
        expected=expected,
        counts_expected=expected is not None and error_of_expected is not None,
        plain_step=plain_step,
    )


def _averaged(estimates: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Average logarithms of speedups, each with its standard error, by precision; return middle, low and high."""
    values, errors = np.array(estimates).T
    weights = errors**-2
    middle, error = float(np.average(values, weights=weights)), float(weights.sum() ** -0.5)
    if len(estimates) == 2:  # both measure the same, so one of the errors is too small if they are far apart
        error *= max(abs(values[0] - values[1]) / math.hypot(*errors) / 2, 1.0)
    error = min(error, _MAX_ERROR)
    return math.exp(middle), math.exp(middle - Z * error), math.exp(middle + Z * error)
