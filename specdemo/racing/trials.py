"""Trials: speculative runs, each between two plain runs of the same prompt, so that drift of the machine cancels out.

Runs are compared by the ratio between neighbours, never by seconds.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from time import perf_counter

from specdemo.engines.base import Engine
from specdemo.errors import PairError, SettingsError, SpecdemoError
from specdemo.models.checks import check_strategy
from specdemo.racing.costs import known_costs, learn, needs_costs
from specdemo.racing.race import RaceEvent, race, run_alone
from specdemo.racing.warm_up import OtherLoad
from specdemo.records import Comparison, Costs, ModelPair, Phase, Request, Round, Run, Trial, Turn
from specdemo.results import metrics
from specdemo.results.estimate import ENOUGH
from specdemo.settings import GenerationSettings

_WARM_UP_ROUNDS = 6


def can_run(pair: ModelPair, settings: GenerationSettings, costs: Costs | None) -> bool:
    """Whether the pair supports these settings, and any step costs the policy needs were measured."""
    strategy = settings.strategy
    try:
        check_strategy(pair, settings.engine, strategy, settings.sampling)
    except (PairError, SettingsError):
        return False
    return not strategy.needs_costs or (costs is not None and costs.draft_step is not None)


def rehearse(
    engine: Engine,
    prompt: str,
    variants: Sequence[GenerationSettings],
    costs: Costs | None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Run a few rounds of each variant, since the first pass of each length compiles its kernels."""
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
    history: tuple[Turn, ...] = (),
) -> Iterator[Trial | None]:
    """Yield a trial for each variant, in order, with plain runs before, between and after.

    Neighbours share a plain run unless they sample differently. In a chat, `history` holds the earlier turns. A trial
    is None if the text ended at its first token. Once `stop` returns True, the unfinished trial is dropped.
    """
    load, before, asked = OtherLoad(engine.thoroughness.load_seconds), None, None
    for settings in variants:
        request = Request.of(prompt, settings, history)
        if before is None or asked != request.plain:  # other sampling needs its own plain runs
            asked = request.plain
            before = run_alone(engine.decoder(asked), stop=stop)
        run = run_alone(engine.decoder(request, costs), stop=stop)
        after = run_alone(engine.decoder(asked), stop=stop)
        if "cancelled" in (before.finish_reason, run.finish_reason, after.finish_reason):
            return
        first, second = (_compared(engine, prompt, settings, plain, run) for plain in (before, after))
        yield _trial(first, second, None if engine.remote else load.share())
        before, load = after, OtherLoad(engine.thoroughness.load_seconds)


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


def _trial(before: Comparison, after: Comparison, other_load: float | None) -> Trial | None:
    run = before.speculative
    tokens = min(metrics.common_tokens(before), metrics.common_tokens(after))
    seconds = metrics.seconds_to(run, tokens)
    if not seconds:
        return None
    reported = run.draft_counts is not None or all(step.proposed is not None for step in run.rounds)
    counts = metrics.draft_counts(run)
    return Trial(
        tokens=tokens,
        seconds=seconds,
        plain_seconds=(metrics.seconds_to(before.plain, tokens) + metrics.seconds_to(after.plain, tokens)) / 2,
        identical=metrics.identical(before) and metrics.identical(after),
        rounds=len(run.rounds) if run.passes_known else None,
        run_tokens=metrics.decoded_tokens(run),
        proposed=counts.proposed if reported else None,
        accepted=counts.accepted if reported else None,
        other_load=other_load,
        plain_steps=tuple(tuple(map(_rounded, metrics.seconds_of_tokens(side.plain))) for side in (before, after)),
        round_steps=tuple(_step(step) for step in run.rounds),
    )


def _step(step: Round) -> tuple[int, int, float]:
    """Return the tokens committed, tokens proposed (-1 if unknown) and seconds."""
    return len(step.committed), -1 if step.proposed is None else len(step.proposed), _rounded(step.seconds)


def _rounded(seconds: float) -> float:
    """Round to a tenth of a microsecond, which keeps files small."""
    return max(round(seconds, 7), 1e-7)


REPEAT_SECONDS = 2.0
"""Time for repeats if no number is given; a slow pair takes longer, enough for an interval."""
MOST_SECONDS = 15.0


def repeats(
    engine: Engine,
    comparison: Comparison,
    *,
    number: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Comparison]:
    """Repeat a finished race, alternating speculative and plain runs; yield the comparison after each repeat.

    Runs `number` repeats, or as many as `REPEAT_SECONDS` allow, or as many as an interval needs if they fit into
    `MOST_SECONDS`. Yields nothing if not even one fits, the race was stopped, or a setting changed during it. Once
    `stop` returns True, the unfinished repeat is dropped.
    """
    if comparison.moves:  # there is no single setting to repeat
        return
    sides = comparison.plain, comparison.speculative
    if any(run.finish_reason == "cancelled" for run in sides) or not all(run.rounds for run in sides):
        return
    plain, speculative = (run.prefill.seconds + metrics.decode_seconds(run) for run in sides)
    if number is None and 2 * plain + speculative > MOST_SECONDS:
        return
    enough = min(plain + ENOUGH * (plain + speculative), MOST_SECONDS)
    until = None if number is not None else perf_counter() + max(REPEAT_SECONDS, enough)
    settings = [comparison.settings] * (engine.thoroughness.repeats if number is None else number)
    costs: Costs | None = comparison.costs
    for trial in trials(engine, comparison.prompt, settings, costs, stop, comparison.history):
        if trial is None:
            return
        comparison = comparison.model_copy(update={"repeats": (*comparison.repeats, trial)})
        yield comparison
        if until is not None and perf_counter() + plain + speculative > until:
            return


def refined(
    engine: Engine,
    comparison: Comparison,
    *,
    costs: Costs | None = None,
    number: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Comparison]:
    """Add step costs and repeats to a finished race, which a failure must not cost; yield each comparison. What it
    shows of step costs is kept.
    """
    if comparison.costs is None and costs is not None:
        comparison = comparison.model_copy(update={"costs": costs})
        yield comparison
    if not comparison.repeats:
        with suppress(SpecdemoError):
            for repeated in repeats(engine, comparison, number=number, stop=stop):
                comparison = repeated
                yield comparison
    if comparison.costs is not None:
        learn(engine, comparison)


def measured_race(
    engine: Engine,
    prompt: str,
    settings: GenerationSettings,
    *,
    history: Sequence[Turn] = (),
    number: int | None = None,
    costs: Costs | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[RaceEvent]:
    """Race and repeat; measure step costs first if the strategy depends on them, else last.

    Yields what `race` does, and a firmer comparison after each repeat. Errors after the race only end the repeats.
    """
    if costs is None and needs_costs(settings):
        yield Phase("calibrating")
        costs = known_costs(engine, stop=stop)
    comparison = None
    for event in race(engine, prompt, settings, history=history, costs=costs, stop=stop):
        comparison = event if isinstance(event, Comparison) else None
        yield event
    if comparison is None or stop():
        return
    for firmer in refined(engine, comparison, number=number, stop=stop):
        comparison = firmer
        yield comparison
    if comparison.costs is None and not stop():
        yield Phase("calibrating")
        yield from refined(engine, comparison, costs=known_costs(engine, stop=stop), number=0, stop=stop)
