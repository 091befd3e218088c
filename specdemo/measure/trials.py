"""Trials: speculative runs, each between two plain runs of the same prompt, so that drift of the machine cancels out.

If the machine gets warmer or busier from one minute to the next, a run and its neighbours are affected almost
equally. So what is compared over many runs is never seconds, but the ratio between neighbours.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from specdemo.analysis import metrics
from specdemo.engines.base import Engine
from specdemo.errors import PairError, SettingsError
from specdemo.measure.race import run_alone
from specdemo.models.checks import check_way
from specdemo.records import Comparison, Costs, ModelPair, Record, Request, Run, Verdict
from specdemo.settings import GenerationSettings
from specdemo.ways import KINDS

LEVEL = 0.95
ENOUGH = 6
_DRAWS = 2000
_WARM_UP_ROUNDS = 6


class Trial(Record):
    """One speculative run and its plain neighbours.

    `seconds` and `plain_seconds`, the mean of both neighbours, are for the same number of new `tokens`, prefill
    excluded. `draft_seconds` and `verify_seconds` are None where the engine does not report them; `accepted`
    and `proposed` where it does not report proposals.
    """

    tokens: int
    seconds: float
    plain_seconds: float
    identical: bool
    rounds: int
    run_tokens: int
    run_seconds: float
    draft_seconds: float | None = None
    verify_seconds: float | None = None
    proposed: int | None = None
    accepted: int | None = None
    judged: int | None = None

    @property
    def speedup(self) -> float:
        """Plain seconds / speculative seconds for the same number of new tokens."""
        return self.plain_seconds / self.seconds


class Interval(Record):
    """A median and its percentile-bootstrap interval; no interval where there are too few runs for one."""

    middle: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        """The median, with the interval in parentheses."""
        if self.low is None or self.high is None:
            return f"{self.middle:.2f}×"
        return f"{self.middle:.2f}× ({LEVEL:.0%} interval {self.low:.2f}–{self.high:.2f})".replace("%", " %")


def median_interval(values: Sequence[float], seed: int = 0) -> Interval:
    """The median of at least one value; from six values on, with a seeded bootstrap interval (Efron 1979).

    With fewer, not even the range from least to greatest covers the median at this level.
    """
    middle = float(np.median(values))
    if len(values) < ENOUGH:
        return Interval(middle=middle)
    draws = np.random.default_rng(seed).choice(values, (_DRAWS, len(values)))
    low, high = np.quantile(np.median(draws, axis=1), ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(middle=middle, low=float(low), high=float(high))


def can_run(pair: ModelPair, settings: GenerationSettings, costs: Costs | None) -> bool:
    """Whether the pair supports these settings, and the step costs that the policy needs are known."""
    way = settings.way
    try:
        check_way(pair, settings.engine, way, Request.of("", settings).sampling)
    except (PairError, SettingsError):
        return False
    return not KINDS[type(way)].costs or (costs is not None and costs.draft_step is not None)


def warm_up(
    engine: Engine,
    prompt: str,
    variants: Sequence[GenerationSettings],
    costs: Costs | None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """A few rounds of each variant, since the first pass of each length compiles its kernels."""
    requests = [Request.of(prompt, settings) for settings in variants]
    for request in [*(first.plain for first in requests[:1]), *requests]:
        if stop():
            return
        run_alone(engine.decoder(request, costs), _WARM_UP_ROUNDS, stop)


def trials(
    engine: Engine,
    prompt: str,
    variants: Sequence[GenerationSettings],
    costs: Costs | None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Trial | None]:
    """One trial for each of the variants, in their order, plain runs before, between and after.

    None instead of a trial where the text ended at its first token. Once `stop` returns True, the unfinished trial
    is dropped.

    Raises:
        SpecdemoError: prompt or settings cannot be run, or the engine failed.
    """
    if not variants:
        return
    before = run_alone(engine.decoder(Request.of(prompt, variants[0]).plain), stop=stop)
    for settings in variants:
        request = Request.of(prompt, settings)
        run = run_alone(engine.decoder(request, costs), stop=stop)
        after = run_alone(engine.decoder(request.plain), stop=stop)
        if "cancelled" in (before.finish_reason, run.finish_reason, after.finish_reason):
            return
        yield _trial(*(_compared(engine, prompt, settings, plain, run) for plain in (before, after)))
        before = after


def _compared(engine: Engine, prompt: str, settings: GenerationSettings, plain: Run, run: Run) -> Comparison:
    return Comparison(
        pair=engine.pair,
        prompt=prompt,
        settings=settings,
        environment=engine.environment,
        plain=plain,
        speculative=run,
        trace_source="measured",
    )


def _trial(before: Comparison, after: Comparison) -> Trial | None:
    run = before.speculative
    tokens = min(metrics.common_tokens(before), metrics.common_tokens(after))
    seconds = metrics.seconds_to(run, tokens)
    if not seconds:
        return None
    told = all(step.proposed is not None for step in run.rounds)
    verdicts = [draft.verdict for step in run.rounds for draft in step.proposed or ()]
    accepted = verdicts.count(Verdict.ACCEPTED)
    return Trial(
        tokens=tokens,
        seconds=seconds,
        plain_seconds=(metrics.seconds_to(before.plain, tokens) + metrics.seconds_to(after.plain, tokens)) / 2,
        identical=metrics.identical(before) and metrics.identical(after),
        rounds=len(run.rounds),
        run_tokens=metrics.decoded_tokens(run),
        run_seconds=metrics.decode_seconds(run),
        draft_seconds=_total([step.draft_seconds for step in run.rounds]),
        verify_seconds=_total([step.verify_seconds for step in run.rounds]),
        proposed=len(verdicts) if told else None,
        accepted=accepted if told else None,
        judged=accepted + verdicts.count(Verdict.REJECTED) if told else None,
    )


def _total(seconds: Sequence[float | None]) -> float | None:
    known = [value for value in seconds if value is not None]
    return sum(known) if len(known) == len(seconds) else None


class Summary(Record):
    """A summary of trials with the same settings. Shares are of the speculative runs' seconds."""

    speedup: Interval
    speedups: tuple[float, ...]
    identical: bool
    mean_accepted_length: float
    acceptance_rate: float | None
    token_acceptance: float | None
    draft_share: float | None
    verify_share: float | None
    other_share: float | None


def summarise(done: Sequence[Trial]) -> Summary:
    """The figures of at least one trial: ratios of sums over the trials, not averages of their ratios."""
    speedups = tuple(trial.speedup for trial in done)
    seconds = sum(trial.run_seconds for trial in done)
    draft = _total([trial.draft_seconds for trial in done])
    verify = _total([trial.verify_seconds for trial in done])
    accepted = _total([trial.accepted for trial in done])
    proposed, judged = (_total([getattr(trial, name) for trial in done]) for name in ("proposed", "judged"))
    return Summary(
        speedup=median_interval(speedups),
        speedups=speedups,
        identical=all(trial.identical for trial in done),
        mean_accepted_length=sum(trial.run_tokens for trial in done) / sum(trial.rounds for trial in done),
        acceptance_rate=accepted / proposed if accepted is not None and proposed else None,
        token_acceptance=accepted / judged if accepted is not None and judged else None,
        draft_share=draft / seconds if draft is not None else None,
        verify_share=verify / seconds if verify is not None else None,
        other_share=1 - (draft + verify) / seconds if draft is not None and verify is not None else None,
    )
