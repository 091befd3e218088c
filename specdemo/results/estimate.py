"""The speedup, the one figure shown everywhere, with its interval and what may be concluded from it.

    speedup = tokens per round × seconds of a plain step / seconds of a round

Tokens and rounds are counted, so only the two times are uncertain. Single slow steps do not move medians of a quarter
of a second, and other programs come and go more slowly than steps do: the spread of these medians gives the standard
error (the method of batch means). Two more errors are added, which no race shows, however long it is: the state of
process and machine, and that other programs slow wide passes down the most. Where they did, counts and step costs
give a second estimate, which a busy machine hardly moves, if their record in quiet races on this machine is known;
otherwise the race stands alone. docs/figures.md has every step in words;
`tests/benchmarks/coverage.py` measures how often intervals hold the truth.
"""

import math
from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from specdemo.records import Comparison, Costs, Record, Run, Trial
from specdemo.results import metrics

Z = 1.96  # standard errors on either side of a 95 % interval
SAME = 0.02  # within this of 1×, neither side is called faster: nobody would notice
ABOVE = 1.1  # × τ: more is impossible, as a round reads the weights once at least; a tenth for clocks and caches
LITTLE = 0.05  # within this of 1×, an uncertain side is not worth naming: it would be right every other time
_PROBABLE = 1.3  # standard errors from 1×: the side is right in nine cases of ten
EVEN = 1.15  # "about even": both ends lie within this factor of 1×; readers notice a larger difference
BUSY = 0.2  # share of the processor that others took; below it the race's own interval says enough
_PART = 0.25  # seconds: longer than a time slice, shorter than most disturbances
_LEAST_PARTS = 4  # the error of fewer would be a guess
_PART_STEPS = 4  # at least, on average: a median of fewer is no median
_MOST = 3.5  # standard error; a factor of a thousand either way says nothing, and files may hold any numbers
_NOTHING = 1000  # the upper end over the lower one, above which the lower one says nothing
_UNKNOWN = 0.4  # standard error of a side with too few steps for parts: a factor of 2.2 either way; hand-set
# Standard errors (of the logarithm) that no race shows, from repeated quiet races of both bundled pairs: the same
# request was 1.8 or 2.3 times as fast, depending on what its process had done before; short steps vary the most.
_STATE = 0.03
_STATE_SECONDS = 0.125e-3  # per seconds of a plain step
_LOAD = 0.2  # per share of the processor that other programs took
_LOAD_SECONDS = 0.8e-3  # the same per seconds of a plain step: short ones mostly wait for a late thread
ENOUGH = 6  # prompts, from which on they count as a sample of prompts
_LEAST_CHECKS = 3  # quiet races whose predictions are known; the spread of fewer would be a guess

INTERVAL = f"95 % interval: {Z} standard errors"
_OF_STEPS = f"tokens per round × plain step / round, in seconds, which are averages of medians over {_PART:g} s"
TRIALS_FORMULA = f"{_OF_STEPS}; {INTERVAL}"
FORMULA = f"{_OF_STEPS}; beside other programs averaged with τ / (d(γ) + v(γ+1)) of step costs; {INTERVAL}"


Strength = Literal["clear", "probable", "even", "uncertain", "noisy"]
Direction = Literal["faster", "slower", "same"]
_Floats = npt.NDArray[np.float64]


class Interval(Record):
    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.is_bound:
            return f"at most {self.high:.2f}×"
        return f"{self.middle:.2f}× (95 % interval {self.low:.2f}–{self.high:.2f})"

    @property
    def is_bound(self) -> bool:
        """Nothing is known but the upper end."""
        return self.high > _NOTHING * self.low

    @property
    def strength(self) -> Strength:
        """clear: the interval excludes 1; probable: right in nine cases of ten; even: it ends close to 1; uncertain:
        the middle leans to one side; noisy: nothing is known but a bound.
        """
        if self.is_bound:
            return "noisy"
        distance, error = abs(math.log(self.middle)), math.log(self.high / self.low) / (2 * Z)
        if not self.low <= 1 <= self.high and distance >= math.log(1 + SAME):
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
        words = {
            "even": "about even",
            "uncertain": "not certain",
            "noisy": "too noisy to call",
            "probable": f"probably {self.direction}",
        }
        return words.get(self.strength, self.direction)


class Speedup(Interval):
    """A speedup with its factors: `middle` = `tokens_per_round` / `plain_steps_per_round`, of `plain_step` seconds.

    `tokens_per_round` is None if a server does not report its passes. `measured` is the estimate from timed `steps`
    alone, None if impossible; `expected` the one from counts and step costs, None without them, which counts only
    beside other programs.
    """

    steps: int
    plain_step: float
    tokens_per_round: float | None
    measured: float | None
    expected: float | None = None
    counts_expected: bool = False

    @property
    def most(self) -> float:
        return _most(self.tokens_per_round)

    @property
    def plain_steps_per_round(self) -> float | None:
        return None if self.tokens_per_round is None else self.tokens_per_round / self.middle


def _most(tokens_per_round: float | None) -> float:
    """Return the speedup above which a measurement is impossible."""
    return math.inf if tokens_per_round is None else ABOVE * tokens_per_round


def _error_of_sums(above: _Floats, below: _Floats) -> float:
    """Return the relative standard error of a ratio of sums (its linear approximation), scaled for few terms."""
    differences = above / above.sum() - below / below.sum()
    return float(math.sqrt((differences**2).sum() * len(above) / (len(above) - 3)))


def _error(logs: _Floats) -> float:
    """Return the standard error of the mean of at least four values, scaled as Student's t is for so few."""
    number = len(logs)
    return float(logs.std(ddof=1) / math.sqrt(number) * math.sqrt((number - 1) / (number - 3)))


class _Run(NamedTuple):
    """Steps of one run: kinds, committed tokens and seconds. A kind is a number of proposals, -1 if unknown."""

    prompt: Hashable
    kinds: tuple[int, ...]
    tokens: tuple[int, ...]
    seconds: tuple[float, ...]

    def first(self, tokens: int) -> "_Run":
        number = int(np.searchsorted(np.cumsum(self.tokens), tokens)) + 1
        return _Run(self.prompt, self.kinds[:number], self.tokens[:number], self.seconds[:number])

    def merged(self) -> "_Run":
        """The run as one step: a server's chunks arrive when they like."""
        return _Run(self.prompt, (-1,), (sum(self.tokens),), (sum(self.seconds),))


class _Side:
    """All timed steps of one side in order: their prompts, tokens, and estimated seconds; and the standard error."""

    def __init__(self, runs: Sequence[_Run]) -> None:
        kinds = [(run.prompt, kind) for run in runs for kind in run.kinds]
        seconds = np.array([each for run in runs for each in run.seconds], float)
        usual = _usual(kinds, seconds)
        medians = _medians(seconds / usual, float(seconds.sum()))
        self.error = _error(medians) if len(medians) >= _LEAST_PARTS else _UNKNOWN
        self.seconds = usual * math.exp(medians.mean())
        self.tokens = np.array([each for run in runs for each in run.tokens], int)
        self._names = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompt for prompt, _ in kinds))}
        self._prompts = np.array([self._names[prompt] for prompt, _ in kinds], int)

    def sums(self, prompt: Hashable) -> tuple[float, int]:
        mine = self._prompts == self._names[prompt]
        return float(self.seconds[mine].sum()), int(self.tokens[mine].sum())


def _usual(kinds: Sequence[Hashable], seconds: _Floats) -> _Floats:
    """Return for each step the median of its kind."""
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    kind_of = np.array([numbers[kind] for kind in kinds], int)
    usual = np.empty(len(seconds))
    for number in numbers.values():
        usual[kind_of == number] = np.median(seconds[kind_of == number])
    return usual


def _medians(factors: _Floats, seconds: float) -> _Floats:
    """Return logarithms of the medians of parts of about `_PART` seconds, or shorter ones if they are few. All have
    the same number of steps, since a single slow step could last longer than a part.
    """
    most = len(factors) / _PART_STEPS if seconds < _PART * len(factors) else len(factors)
    number = min(max(seconds / _PART, _LEAST_PARTS), most)
    return np.log([np.median(part) for part in np.array_split(factors, max(int(number), 1))])


def of_comparison(comparison: Comparison) -> Speedup | None:
    """None if a side has no step to compare."""
    tokens = metrics.common_tokens(comparison)
    if not tokens:
        return None
    plain, speculative = (_steps(run).first(tokens) for run in (comparison.plain, comparison.speculative))
    plains, speculatives = _runs(comparison.repeats, [None] * len(comparison.repeats))
    return _speedup(
        [plain, *plains],
        [speculative, *speculatives],
        loads(comparison),
        passes=comparison.speculative.passes_known,
        expected=expected_speedup(comparison, comparison.costs) if comparison.costs is not None else None,
        error_of_expected=_error_of_predictions(comparison),
    )


def loads(comparison: Comparison) -> list[float]:
    """Known shares of the processor that other programs took, during the race and each repeat."""
    found = [comparison.other_load, *(trial.other_load for trial in comparison.repeats)]
    return [load for load in found if load is not None]


def of_trials(trials: Sequence[Trial], prompts: Sequence[Hashable] | None = None) -> Speedup:
    """Return the speedup of trials with the same settings. If six or more of the `prompts`, one per trial, differ,
    they count as a sample, and the interval covers how much prompts differ; otherwise it is for these prompts.
    """
    plains, speculatives = _runs(trials, [None] * len(trials) if prompts is None else prompts)
    passes = all(trial.rounds is not None for trial in trials)
    shares = [trial.other_load for trial in trials if trial.other_load is not None]
    return _speedup(plains, speculatives, shares, passes=passes)


def _steps(run: Run) -> _Run:
    kinds = (-1 if step.proposed is None else len(step.proposed) for step in run.rounds)
    tokens = (len(step.committed) for step in run.rounds)
    return _Run(None, tuple(kinds), tuple(tokens), tuple(step.seconds for step in run.rounds))


def _runs(trials: Sequence[Trial], prompts: Sequence[Hashable]) -> tuple[list[_Run], list[_Run]]:
    """Return the plain and the speculative runs; a plain run counts once, even as neighbour of two trials."""
    plains, speculatives = list[_Run](), list[_Run]()
    for trial, prompt in zip(trials, prompts, strict=True):
        for seconds in trial.plain_steps:
            run = _Run(prompt, (0,) * len(seconds), (1,) * len(seconds), seconds)
            if run not in plains[-1:]:
                plains.append(run)
        tokens, kinds, took = zip(*trial.round_steps, strict=True) if trial.round_steps else ((), (), ())
        speculatives.append(_Run(prompt, kinds, tokens, took).first(trial.tokens))
        if not trial.plain_steps or not trial.round_steps:  # several requests at once: only totals are known
            plains.append(_Run(prompt, (-1,), (trial.tokens,), (trial.plain_seconds,)))
            speculatives[-1] = _Run(prompt, (-1,), (trial.tokens,), (trial.seconds,))
    return plains, speculatives


def expected_speedup(comparison: Comparison, costs: Costs) -> float | None:
    """Return the speedup of a race's own rounds at these step costs; None if those of a round are unknown."""
    settings, run = comparison.settings, comparison.speculative
    # step costs are measured with a KV cache
    if settings.kv_cache == "off" or not run.rounds or not run.passes_known:
        return None
    free, took = not settings.strategy.drafter.model, 0.0
    for step in run.rounds:
        cost = None if step.proposed is None else costs.round_cost(len(step.proposed), free=free)
        if cost is None:
            return None
        took += cost
    return metrics.decoded_tokens(run) / took


def _error_of_predictions(comparison: Comparison) -> float | None:
    """Of their logarithm, by their record in quiet races; None unless other programs disturbed this one."""
    checks = comparison.costs.checks if comparison.costs is not None else ()
    if max(loads(comparison), default=0.0) <= BUSY or len(checks) < _LEAST_CHECKS:
        return None
    # widened as for so few: the mean square of three says little about the next error
    return max(math.sqrt(sum(check**2 for check in checks) / (len(checks) - 2)), _STATE)


class RoundCosts(NamedTuple):
    """In plain steps: a draft step, drafting in an average round, and the rest of it. `own`: of this run itself."""

    draft_step: float | None
    drafting: float | None
    verify: float | None
    own: bool


def round_costs(comparison: Comparison, speedup: Speedup | None) -> RoundCosts | None:
    """The run's own where its engine times drafting, so that speedup = τ / (drafting + verify); else step costs."""
    rounds, strategy, costs = comparison.speculative.rounds, comparison.settings.strategy, comparison.costs
    model, lookahead = strategy.drafter.model, strategy.fixed_lookahead
    cost = speedup.plain_steps_per_round if speedup is not None else None
    if cost is None or any(step.draft_seconds is None for step in rounds):
        if costs is None:
            return None
        verify = None if lookahead is None else metrics.verify_cost(costs, lookahead + 1)
        return RoundCosts(metrics.draft_cost(costs) if model else None, None, verify, own=False)
    if not model:
        return RoundCosts(None, None, cost, own=True)
    kinds = _steps(comparison.speculative).kinds
    parts = [step.draft_seconds or 0.0 for step in rounds], [step.seconds for step in rounds]
    drafts, whole = (float(_usual(kinds, np.array(seconds)).sum()) for seconds in parts)
    drafting, proposed = cost * drafts / whole, sum(kinds)
    return RoundCosts(drafting * len(rounds) / proposed if proposed else None, drafting, cost - drafting, own=True)


def _speedup(
    plains: Sequence[_Run],
    speculatives: Sequence[_Run],
    loads: Sequence[float],
    *,
    passes: bool,
    expected: float | None = None,
    error_of_expected: float | None = None,
) -> Speedup:
    if not passes:
        plains, speculatives = ([run.merged() for run in runs] for runs in (plains, speculatives))
    plain, speculative = _Side(plains), _Side(speculatives)
    prompts = dict.fromkeys(run.prompt for run in speculatives)
    rounds, tokens = (np.array(each) for each in zip(*map(speculative.sums, prompts), strict=True))
    alone = np.array([seconds / number for seconds, number in map(plain.sums, prompts)]) * tokens
    ratio, plain_step = float(alone.sum() / rounds.sum()), float(alone.sum() / tokens.sum())
    error = math.hypot(plain.error, speculative.error)
    if len(rounds) >= ENOUGH:
        error = _error_of_sums(alone, rounds)
    load = sum(loads) / len(loads) if loads else 0.0
    state = _STATE + _STATE_SECONDS / plain_step
    error = math.hypot(error, state, (_LOAD + _LOAD_SECONDS / plain_step) * load)
    length = float(speculative.tokens.mean()) if passes else None
    limit = _most(length)
    estimates = [(math.log(ratio), error)] if ratio <= limit else []
    if expected is not None and error_of_expected is not None:
        estimates.append((math.log(expected), error_of_expected))
    if estimates:
        found = _averaged(estimates)
        found = found.model_copy(update={"high": min(found.high, max(limit, found.middle))})
    else:  # all that is known is a bound
        found = Interval(middle=limit, low=limit * math.exp(-2 * Z * _MOST), high=limit)
    return Speedup(
        **found.model_dump(),
        steps=len(plain.tokens) + len(speculative.tokens),
        tokens_per_round=length,
        measured=ratio if ratio <= limit else None,
        expected=expected,
        counts_expected=expected is not None and error_of_expected is not None,
        plain_step=plain_step,
    )


def _averaged(estimates: Sequence[tuple[float, float]]) -> Interval:
    """Average one or two estimates, each with its standard error, by their precision."""
    weights = [error**-2 for _, error in estimates]
    middle = sum(weight * value for weight, (value, _) in zip(weights, estimates, strict=True)) / sum(weights)
    error = sum(weights) ** -0.5
    if len(estimates) == 2:  # they measure the same, so one of the errors is too small if they are far apart
        (one, its_error), (other, other_error) = estimates
        error *= max(abs(one - other) / math.hypot(its_error, other_error) / 2, 1.0)
    error = min(error, _MOST)
    return Interval(middle=math.exp(middle), low=math.exp(middle - Z * error), high=math.exp(middle + Z * error))
