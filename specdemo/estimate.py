"""The speedup, the one figure shown everywhere, with its interval and what may be concluded from it.

A race of two seconds holds hundreds of timed plain steps and rounds, so its totals are the poorest summary of it. The
tokens per round are counted, not estimated; only the time of each kind of step is uncertain. Kinds are pass lengths,
since a round that proposes less takes less time.

- A kind's time is the mean of two estimates: the plain mean, which is right if disturbances hit both sides alike but
  follows every outlier, and the mean without the slowest and fastest 30 %, which ignores outliers but favours
  undisturbed steps, which are more common on a side with short steps. The interval grows by their disagreement.
- The interval comes from a bootstrap over blocks of about 0.2 s, since neighbouring steps are disturbed together,
  widened by Student's t for few blocks. Added to its variance is what resampling so short a time cannot show: the
  machine's drift between blocks, and the state of the process. For example, the same request of the story pair was
  decoded 1.8 times as fast for a dozen races of one process and then, after another strategy had run, 2.3 times as
  fast; memory placement is the likely cause. Other programs slow wide passes down more than short ones, so a busy
  machine has a different speedup from a quiet one.

The true speedup is what a long quiet run would show: all plain seconds over all speculative seconds for the same
tokens. `tests/analysis/test_estimates.py` checks the interval against simulated machines, `python -m
tests.benchmarks.coverage` against real ones. The processor time of the engine's threads was tried as a second clock
and rejected: threads waiting for an interrupted one spin, which counts as processor time, and intervals from it held
the truth less often.

Load runs, and trials of earlier versions, have only totals; their intervals come from `median_interval`.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from specdemo import metrics
from specdemo.metrics import thinking_tokens
from specdemo.records import Comparison, Record, Round, Run, Trial

LEVEL = 0.95
ENOUGH = 6
_RESAMPLES = 2000
SAME = 0.02  # within this of 1×, neither side is called faster
_EVEN = 1.2  # two sides are about even if the interval stays within this factor of 1×
_WIDE = 1.5  # upper end / lower end: beyond this the middle says little

MEDIAN_FORMULA = (
    f"median of the runs; interval: the middle {LEVEL * 100:.0f} % of the medians of {_RESAMPLES:,} random resamples "
    f"of them (bootstrap), from {ENOUGH} runs on"
)


Call = Literal["faster", "slower", "about even", "too noisy to call"]


class Interval(Record):
    """An estimate with its interval, if there are enough runs for one.

    A `middle` above `limit` is impossible, so something must have disturbed the measurement.
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
        """Return the estimate, with the interval in parentheses."""
        return f"{self.middle:.2f}×" + (f" ({self.ends})" if self.has_interval else "")

    @property
    def has_interval(self) -> bool:
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
        """Whether the estimate exceeds its limit."""
        return self.limit is not None and self.middle > self.limit

    @property
    def call(self) -> Call:
        """Conclusion about a speedup; a side is faster only if the interval leaves no doubt."""
        if self.low is None or self.high is None or self.impossible:
            return "too noisy to call"
        if self.low > 1 and self.middle >= 1 + SAME:
            return "faster"
        if self.high < 1 and self.middle <= 1 - SAME:
            return "slower"
        return "about even" if self.low >= 1 / _EVEN and self.high <= _EVEN else "too noisy to call"

    @property
    def wide(self) -> bool:
        """Whether the interval is too wide for the middle to say much."""
        return self.low is not None and self.high is not None and self.high > _WIDE * self.low

    @property
    def includes_one(self) -> bool:
        """Whether both faster and slower are possible."""
        return self.low is not None and self.high is not None and self.low <= 1 <= self.high


def median_interval(values: Sequence[float], seed: int = 0) -> Interval:
    """Return the median; from six values on, with a seeded bootstrap interval (Efron 1979).

    With fewer, not even the range from least to greatest covers the median at this level.
    """
    return _bootstrapped(tuple(values), seed)


@lru_cache(maxsize=256)
def _bootstrapped(values: tuple[float, ...], seed: int) -> Interval:
    middle = float(np.median(values))
    if len(values) < ENOUGH:
        return Interval(middle=middle)
    draws = np.random.default_rng(seed).choice(values, (_RESAMPLES, len(values)))
    return interval_of(middle, np.median(draws, axis=1))


def interval_of(middle: float, draws: npt.NDArray[np.float64]) -> Interval:
    """Return an estimate with the interval that holds 95 % of its bootstrap draws."""
    low, high = np.quantile(draws, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(middle=middle, low=float(low), high=float(high))


BLOCK_SECONDS = 0.2
_LEAST_BLOCKS = 8  # per side; shorter ones if it took less time
_STEPS = 3  # per block, at least
_TRIMMED = 0.3  # share of the steps, at either end
_DRAWS = 400
_BINS = 256  # bins per kind that steps are summed up in, by length, which bounds the work
_STATE = 0.06  # relative half-width that no run of seconds removes: process and machine differ from minute to minute
_STATE_SECONDS = 0.25e-3  # per seconds of a plain step: short steps depend more on where their memory lies
_STATE_LOAD = 0.35  # per share of the processor that other programs took: they slow wide passes down the most
_DRIFT = 0.06  # of a single block; averages out over several
_LOAD = 1.0  # the same, per share of the processor that other programs took
_FEW = 0.3  # of a single step
_MOST = 7.0  # limit of the logarithm: a factor of a thousand
ABOVE = 1.1  # × τ: a round hardly takes less time than a plain step; clocks and caches explain a little

FORMULA = (
    "seconds of a plain step × tokens per round / seconds of a round, over all steps of the race and its repeats; "
    f"{LEVEL * 100:.0f} % interval by a bootstrap over blocks of {BLOCK_SECONDS:g} s"
)

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


class Speedup(Interval):
    """A speedup with its interval and factors: `middle` = `plain_step` · `tokens_per_round` / `round`.

    `plain_step` and `round` are seconds, None if there are only totals; `tokens_per_round` is None if a server does
    not report which tokens came from one pass. `runs` counts speculative runs, `steps` the timed steps of both sides,
    `blocks` those of the side with fewer.
    """

    runs: int
    steps: int = 0
    blocks: int = 0
    plain_step: float | None = None
    round: float | None = None
    tokens_per_round: float | None = None

    @property
    def plain_steps_per_round(self) -> float | None:
        """Time of a round in plain steps."""
        return None if self.tokens_per_round is None else self.tokens_per_round / self.middle


class _Steps(NamedTuple):
    """Steps of one run: seconds, committed tokens and kinds."""

    seconds: tuple[float, ...]
    tokens: tuple[int, ...]
    kinds: tuple[int, ...]

    def first(self, tokens: float) -> _Floats:
        """Return the share of each step that lies within the first `tokens` tokens."""
        committed = np.array(self.tokens, float)
        before = np.cumsum(committed) - committed
        share = np.clip((tokens - before) / np.maximum(committed, 1), 0, 1)
        return np.asarray(np.where(committed > 0, share, before < tokens), float)


class _Pair(NamedTuple):
    """A plain and a speculative run of the same prompt, compared at the same number of tokens."""

    plain: _Steps
    speculative: _Steps
    tokens: int
    prompt: Hashable = None


_NOTHING = _Steps((), (), ())


def of_comparison(comparison: Comparison) -> Speedup | None:
    """Return the speedup of a race and its repeats together; None if a side has no step to compare.

    Repeats without steps, from files of earlier versions, are used alone if there are enough of them.
    """
    trials = comparison.repeats
    if len(trials) >= ENOUGH and not any(trial.round_steps for trial in trials):
        return of_trials(trials)
    plain, speculative = (_steps(run) for run in (comparison.plain, comparison.speculative))
    tokens = min(sum(plain.tokens), sum(speculative.tokens))
    timed = [trial for trial in trials if trial.round_steps]
    pairs = [_Pair(plain, speculative, tokens), *_pairs(timed, [None] * len(timed))]
    loads = [comparison.other_load, *(trial.other_load for trial in trials)]
    return _speedup(tuple(pairs), _load(loads), 1 + len(trials), passes=comparison.speculative.passes_known)


def of_trials(trials: Sequence[Trial], prompts: Sequence[Hashable] | None = None) -> Speedup:
    """Return the speedup of one or more trials with the same settings.

    If six or more of the `prompts`, one per trial, differ, they count as a sample of prompts, and the interval covers
    how much prompts differ. Otherwise it is for these prompts.
    """
    prompts = [None] * len(trials) if prompts is None else prompts
    passes = all(trial.rounds is not None for trial in trials)
    found = None
    if all(trial.round_steps for trial in trials):
        pairs = tuple(_pairs(trials, prompts))
        found = _speedup(pairs, _load([trial.other_load for trial in trials]), len(trials), passes=passes)
    if found is not None:
        return found
    rounds = sum(trial.rounds or 0 for trial in trials)
    length = sum(trial.run_tokens for trial in trials) / rounds if rounds and passes else None
    medians = median_interval([trial.speedup for trial in trials])
    return Speedup(
        **medians.model_dump(exclude={"limit"}),
        runs=len(trials),
        tokens_per_round=length,
        limit=None if length is None else ABOVE * length,
    )


def _steps(run: Run) -> _Steps:
    return _Steps(
        seconds=tuple(step.seconds for step in run.rounds),
        tokens=tuple(len(step.committed) for step in run.rounds),
        kinds=tuple(map(kind, run.rounds)),
    )


def kind(step: Round) -> int:
    """Return the kind of a round, which determines its time: the number of proposals, or -1 if unknown."""
    return -1 if step.proposed is None else len(step.proposed)


def _pairs(trials: Sequence[Trial], prompts: Sequence[Hashable]) -> Iterator[_Pair]:
    """Yield each trial's run with its plain neighbours. Every run counts once, even as neighbour of two trials."""
    before: tuple[Hashable, tuple[float, ...]] = (None, ())
    for trial, prompt in zip(trials, prompts, strict=True):
        run = _Steps(*zip(*[(seconds, tokens, kind) for tokens, kind, seconds in trial.round_steps], strict=True))
        for seconds in trial.plain_steps:
            if (prompt, seconds) != before:
                yield _Pair(_Steps(seconds, (1,) * len(seconds), (0,) * len(seconds)), run, trial.tokens, prompt)
                run = _NOTHING
            before = prompt, seconds
        if run is not _NOTHING:
            yield _Pair(_NOTHING, run, trial.tokens, prompt)


def _load(loads: Sequence[float | None]) -> float:
    """Return the mean of the measured loads."""
    measured = [load for load in loads if load is not None]
    return sum(measured) / len(measured) if measured else 0.0


@lru_cache(maxsize=256)  # headline, bars, explanation and warnings of a comparison all ask for the same one
def _speedup(pairs: tuple[_Pair, ...], load: float, runs: int, *, passes: bool) -> Speedup | None:
    sides = [
        _Side([(pair.plain, pair.tokens, pair.prompt) for pair in pairs]),
        _Side([(pair.speculative, pair.tokens, pair.prompt) for pair in pairs]),
    ]
    if not all(side.measured for side in sides):
        return None
    prompts = list(dict.fromkeys(pair.prompt for pair in pairs))
    random = np.random.default_rng(0)
    if len(prompts) >= ENOUGH:
        many = random.multinomial(len(prompts), np.full(len(prompts), 1 / len(prompts)), _DRAWS)
        blocks = len(prompts)
        draws = [many[:, [prompts.index(prompt) for prompt in side.prompts]] for side in sides]
    else:
        blocks = min(side.blocks for side in sides)
        draws = [random.multinomial(side.blocks, np.full(side.blocks, 1 / side.blocks), _DRAWS) for side in sides]
    plain, speculative = (
        side.seconds_per_token(drawn, fixed=len(prompts) < ENOUGH) for side, drawn in zip(sides, draws, strict=True)
    )
    ratios = np.log(plain) - np.log(speculative)  # per draw, by mean and trimmed mean; row 0 is no draw
    middle, apart = float(ratios[0].mean()), float(ratios[0, 0] - ratios[0, 1])
    spread = (
        float(ratios[1:].mean(axis=1).std(ddof=1))
        * student_quantile(blocks - 1)
        * np.sqrt(blocks / max(blocks - 1, 1))
    )
    step = float(np.exp(np.log(plain[0]).mean()))
    lengths = min(side.lengths for side in sides)
    floor = (_STATE + _STATE_SECONDS / step) ** 2 + (_STATE_LOAD * load) ** 2
    floor += (_DRIFT**2 + (_LOAD * load) ** 2) / lengths + (_FEW / min(side.steps for side in sides)) ** 2
    half = min(float(np.sqrt(spread**2 + floor + apart**2)), _MOST)
    length = sides[1].tokens / sides[1].steps if passes else None
    return Speedup(
        middle=float(np.exp(middle)),
        low=float(np.exp(middle - half)) if blocks > 1 else None,  # a single block shows no spread
        high=float(np.exp(middle + half)) if blocks > 1 else None,
        runs=runs,
        steps=sum(side.number for side in sides),
        blocks=blocks,
        plain_step=step,
        round=None if length is None else step * length / float(np.exp(middle)),
        tokens_per_round=length,
        limit=None if length is None else ABOVE * length,
    )


class _Side:
    """All steps of one side, in blocks."""

    def __init__(self, runs: Sequence[tuple[_Steps, int, Hashable]]) -> None:
        runs = [(steps, tokens, prompt) for steps, tokens, prompt in runs if steps.seconds and tokens]
        self.measured = bool(runs)
        if not runs:
            return
        total = sum(sum(steps.seconds) for steps, _, _ in runs)
        length = min(BLOCK_SECONDS, total / _LEAST_BLOCKS)
        parts: list[tuple[_Floats, _Floats, _Ints, _Floats, _Ints]] = []
        self.prompts: list[Hashable] = []  # of each block
        self.lengths = 0.0  # in units of BLOCK_SECONDS
        for steps, tokens, prompt in runs:
            share = steps.first(tokens)
            counted = share > 0
            share, seconds = share[counted], np.array(steps.seconds)[counted]
            number = max(min(round(float(seconds.sum()) / length), len(seconds) // _STEPS), 1)
            middles = (np.cumsum(seconds) - seconds / 2) / seconds.sum()
            block = np.minimum((middles * number).astype(int), number - 1) + len(self.prompts)
            parts.append(
                (seconds, np.array(steps.tokens, float)[counted], np.array(steps.kinds)[counted], share, block)
            )
            self.prompts += [prompt] * number
            self.lengths += max(float(seconds.sum()) / BLOCK_SECONDS, 1.0)
        self._seconds, self._committed, self._kinds, self._share, self._block = map(
            np.concatenate, zip(*parts, strict=True)
        )
        self.blocks, self.number = len(self.prompts), len(self._seconds)
        self.steps = float(self._share.sum())
        self.tokens = float((self._share * self._committed).sum())
        self.measured = self.steps > 0 and self.tokens > 0

    def seconds_per_token(self, draws: _Ints, *, fixed: bool) -> _Floats:
        """Return the seconds per token for the blocks as they are and for each draw, by means and trimmed means.

        `draws[i, b]` is how often draw i holds block b. If `fixed`, the number of steps of each kind is kept, and
        only their time varies.
        """
        weights = np.vstack([np.ones(self.blocks), draws])
        seconds = np.zeros((len(weights), 2))
        for kind_ in np.unique(self._kinds):
            times, number = self._times(self._kinds == kind_, weights)
            seconds += times * (number[:1] if fixed else number)[:, None]
        tokens = weights @ np.bincount(self._block, self._share * self._committed, self.blocks)
        return np.asarray(seconds / (tokens[:1] if fixed else np.maximum(tokens, 1e-9))[:, None])

    def _times(self, of_kind: npt.NDArray[np.bool_], weights: _Floats) -> tuple[_Floats, _Floats]:
        """Return a kind's time per step in each draw, by mean and trimmed mean, and the number of such steps."""
        order = np.argsort(self._seconds[of_kind], kind="stable")
        seconds, share, block = (each[of_kind][order] for each in (self._seconds, self._share, self._block))
        bins = min(_BINS, len(seconds))
        bin_ = np.arange(len(seconds)) * bins // len(seconds)
        cells = block * bins + bin_
        steps, sums = (
            weights @ np.bincount(cells, each, self.blocks * bins).reshape(self.blocks, bins)
            for each in (share, share * seconds)
        )
        number = steps.sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            until = np.cumsum(steps, axis=1)
            low, high = _TRIMMED * number[:, None], (1 - _TRIMMED) * number[:, None]
            kept = np.clip(until, low, high) - np.clip(until - steps, low, high)
            trimmed = (np.nan_to_num(sums / steps) * kept).sum(axis=1) / kept.sum(axis=1)
            times = np.stack([sums.sum(axis=1) / number, trimmed], axis=1)
        return np.where(number[:, None] > 0, times, times[0]), number  # a draw may have no step of the kind


def student_quantile(freedom: int) -> float:
    """Return the 97.5th percentile of Student's t, within 1 % (Abramowitz and Stegun 1964, 26.7.5).

    Exact for 1 and 2 degrees of freedom.
    """
    if freedom < 3:
        return {1: 12.706, 2: 4.303}.get(freedom, 0.0)
    z = 1.959964
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return float(z + sum(term / freedom**power for power, term in enumerate(terms, 1)))


class Summary(Record):
    """A summary of trials with the same settings. Shares are of the speculative runs' seconds.

    `speedups` are those of whole trials, drawn beside the estimate. `other_load` is the median share of the machine's
    processor time that other processes took.
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


def summarise(done: Sequence[Trial], prompts: Sequence[Hashable] | None = None) -> Summary:
    """Summarise one or more trials: ratios of sums over the trials, not averages of their ratios.

    `prompts`, one per trial: see `of_trials`.
    """
    seconds = sum(trial.run_seconds for trial in done)
    draft = total([trial.draft_seconds for trial in done])
    verify = total([trial.verify_seconds for trial in done])
    accepted = total([trial.accepted for trial in done])
    proposed, judged = (total([getattr(trial, name) for trial in done]) for name in ("proposed", "judged"))
    rounds = total([trial.rounds for trial in done])
    loads = [trial.other_load for trial in done if trial.other_load is not None]
    return Summary(
        speedup=of_trials(done, prompts),
        speedups=tuple(trial.speedup for trial in done),
        identical=all(trial.identical for trial in done),
        mean_accepted_length=sum(trial.run_tokens for trial in done) / rounds if rounds else None,
        acceptance_rate=accepted / proposed if accepted is not None and proposed else None,
        token_acceptance=accepted / judged if accepted is not None and judged else None,
        draft_share=draft / seconds if draft is not None else None,
        verify_share=verify / seconds if verify is not None else None,
        other_share=1 - (draft + verify) / seconds if draft is not None and verify is not None else None,
        other_load=float(np.median(loads)) if loads else None,
    )


def total(seconds: Sequence[float | None]) -> float | None:
    """Return the sum; None if any part is unknown."""
    known = [value for value in seconds if value is not None]
    return sum(known) if len(known) == len(seconds) else None


_BLOCKS = (16, 32, 64, 128, 256, 512)
_MOST_BLOCKS = 8  # blocks per run
_FEW_ROUNDS = 3  # rounds, below which a part says nothing


class Part(Summary):
    """A part of some runs: tokens from `start` to before `end`, counted from the first round's first."""

    name: str
    start: int
    end: int
    rounds: int


def race_of(comparison: Comparison) -> Trial | None:
    """Return the race itself as a trial with the steps of both sides; None if a side has none."""
    run, plain, tokens = comparison.speculative, comparison.plain, metrics.common_tokens(comparison)
    seconds = metrics.seconds_to(run, tokens)
    if not seconds or not run.passes_known:
        return None
    complete = all(step.proposed is not None for step in run.rounds)
    return Trial(
        tokens=tokens,
        seconds=seconds,
        plain_seconds=metrics.seconds_to(plain, tokens),
        identical=metrics.identical(comparison),
        rounds=len(run.rounds),
        run_tokens=metrics.decoded_tokens(run),
        run_seconds=metrics.decode_seconds(run),
        proposed=sum(len(step.proposed or ()) for step in run.rounds) if complete else None,
        accepted=sum(step.accepted for step in run.rounds) if complete else None,
        plain_steps=(metrics.seconds_of_tokens(plain),),
        round_steps=tuple(
            (len(step.committed), -1 if step.proposed is None else len(step.proposed), step.seconds)
            for step in run.rounds
        ),
        thinking=thinking_tokens(run),
    )


def by_position(trials: Sequence[Trial], prompts: Sequence[Hashable] | None = None) -> list[Part]:
    """Return the parts of the text in at most eight equal blocks."""
    longest = max((trial.run_tokens for trial in trials), default=0)
    block = next((size for size in _BLOCKS if size * _MOST_BLOCKS >= longest), _BLOCKS[-1])
    found = (
        _part(f"{start + 1}–{start + block}", trials, prompts, start, start + block)
        for start in range(0, longest, block)
    )
    return [part for part in found if part is not None]


def by_thinking(trials: Sequence[Trial], prompts: Sequence[Hashable] | None = None) -> list[Part]:
    """Return thinking and answer as parts; empty if nothing thinks."""
    if not any(trial.thinking for trial in trials):
        return []
    parts = []
    for name, answers in (("thinking", False), ("answer", True)):
        slices = []
        for index, trial in enumerate(trials):
            border = max((trial.thinking or 0) - 1, 0)  # the prefill gave the first token
            start, end = (border, trial.run_tokens) if answers else (0, border)
            if (cut := _slice(trial, start, end)) is not None:
                slices.append((cut, None if prompts is None else prompts[index]))
        part = _summary(name, slices, 0, 0)
        if part is not None:
            parts.append(part)
    return parts


def accepted_per_round(trials: Sequence[Trial]) -> dict[int, int]:
    """Return how many rounds accepted 0, 1, 2, … proposals; empty if rounds are unknown."""
    seen: Counter[int] = Counter()
    for trial in trials:
        if trial.rounds is None:
            return {}
        seen.update(_accepted(trial))
    return {count: seen[count] for count in range(max(seen, default=-1) + 1)}


def _accepted(trial: Trial) -> Iterator[int]:
    """Yield each round's accepted proposals: all committed tokens but one; in the last round, the remainder."""
    *rounds, last = [tokens for tokens, _, _ in trial.round_steps] or [0]
    counts = [max(tokens - 1, 0) for tokens in rounds]
    yield from counts
    if trial.round_steps:
        yield max(last - 1, 0) if trial.accepted is None else max(trial.accepted - sum(counts), 0)


def _part(
    name: str, trials: Sequence[Trial], prompts: Sequence[Hashable] | None, start: int, end: int
) -> Part | None:
    slices = [
        (cut, None if prompts is None else prompts[index])
        for index, trial in enumerate(trials)
        if (cut := _slice(trial, start, end)) is not None
    ]
    return _summary(name, slices, start, end)


def _summary(name: str, slices: Sequence[tuple[Trial, Hashable]], start: int, end: int) -> Part | None:
    cuts = [cut for cut, _ in slices]
    rounds = sum(cut.rounds or 0 for cut in cuts)
    if rounds < _FEW_ROUNDS:
        return None
    found = summarise(cuts, [prompt for _, prompt in slices])
    return Part(**found.model_dump(), name=name, start=start, end=end, rounds=rounds)


def _slice(trial: Trial, start: int, end: int) -> Trial | None:
    """Return the rounds that begin with a token from `start` to before `end`, and the plain steps of their tokens."""
    position, begins, kept, accepted = 0, None, [], 0
    for step, right in zip(trial.round_steps, _accepted(trial), strict=True):
        if start <= position < end:
            begins = position if begins is None else begins
            kept.append(step)
            accepted += right
        position += step[0]
    if begins is None:
        return None
    committed = sum(tokens for tokens, _, _ in kept)
    plain = [steps[begins : begins + committed] for steps in trial.plain_steps]
    tokens = min(committed, trial.tokens - begins, *map(len, plain))
    if tokens <= 0:
        return None
    complete = trial.accepted is not None and all(proposed >= 0 for _, proposed, _ in kept)
    seconds = sum(seconds for _, _, seconds in kept)
    return trial.model_copy(
        update={
            "tokens": tokens,
            "seconds": seconds,
            "plain_seconds": sum(map(sum, plain)) / len(plain),
            "rounds": len(kept),
            "run_tokens": committed,
            "run_seconds": seconds,
            "draft_seconds": None,
            "verify_seconds": None,
            "proposed": sum(proposed for _, proposed, _ in kept) if complete else None,
            "accepted": accepted if complete else None,
            "judged": None,
            "plain_steps": tuple(plain),
            "round_steps": tuple(kept),
        }
    )
