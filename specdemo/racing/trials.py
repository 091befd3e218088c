"""Trials: speculative runs, each between two plain runs of the same prompt, so that drift of the machine cancels out.

Neighbouring runs are compared by their ratio; seconds of distant runs are never compared.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from time import perf_counter

from specdemo.engines.base import Engine
from specdemo.errors import PairError, SettingsError, SpecdemoError
from specdemo.models.checks import check_strategy
from specdemo.racing.costs import known_costs
from specdemo.racing.race import RaceEvent, race, run_alone
from specdemo.racing.warm_up import OtherLoad
from specdemo.records import Comparison, Costs, ModelPair, Phase, Request, Run, Trial, Turn
from specdemo.results import metrics
from specdemo.results.estimate import of_comparison
from specdemo.settings import GenerationSettings

_WARM_UP_ROUNDS = 6
REPEAT_SECONDS = 2.0  # for repeats, at least: less than the page takes to play a race
MAX_SECONDS = 15.0  # of a race that is repeated by itself; hand-set: visitors wait that long once more, not longer


def can_run(pair: ModelPair, settings: GenerationSettings, costs: Costs | None) -> bool:
    """Whether the pair supports these settings, and any step costs the policy needs were measured."""
    strategy = settings.strategy
    try:
        check_strategy(pair, settings.engine, strategy, settings.sampling)
    except (PairError, SettingsError):
        return False
    return not strategy.needs_costs or (costs is not None and costs.draft_step is not None)


def warm_up_variants(
    engine: Engine,
    prompt: str,
    variants: Sequence[GenerationSettings],
    costs: Costs | None,
    stop: Callable[[], bool] = lambda: False,
    seconds: float | None = None,
) -> Run | None:
    """Run a few rounds of each variant, since the first pass of each length compiles its kernels; fewer if that would
    take more than `seconds`. Return the plain run.
    """
    requests = [Request.of(prompt, settings) for settings in variants]
    plain, rounds, began = None, _WARM_UP_ROUNDS, perf_counter()
    for request in [*(request.plain for request in requests[:1]), *requests]:
        if stop():
            break
        run = run_alone(engine.decoder(request, costs), rounds, stop)
        if plain is None and seconds is not None:
            rounds = min(max(int(seconds / (perf_counter() - began) / len(requests) * rounds), 1), rounds)
        plain = plain or run
    return plain


def trials(
    engine: Engine,
    prompt: str,
    variants: Sequence[GenerationSettings],
    costs: Costs | None,
    stop: Callable[[], bool] = lambda: False,
    history: tuple[Turn, ...] = (),
    before: Run | None = None,
) -> Iterator[Trial | None]:
    """Yield a trial for each variant, in order, with plain runs before, between and after.

    Neighbours share a plain run unless they sample differently; `before`, one that has just ended, is the first. In a
    chat, `history` holds the earlier turns. A trial is None if the text ended at its first token. Once `stop` returns
    True, the unfinished trial is dropped.
    """
    load, plain = OtherLoad(engine.thoroughness.load_seconds), None
    for settings in variants:
        request = Request.of(prompt, settings, history)
        if before is None or plain not in (None, request.plain):  # other sampling needs its own plain runs
            before = run_alone(engine.decoder(request.plain), stop=stop)
        plain = request.plain
        run = run_alone(engine.decoder(request, costs), stop=stop)
        after = run_alone(engine.decoder(plain), stop=stop)
        if "cancelled" in (before.finish_reason, run.finish_reason, after.finish_reason):
            return
        yield _trial(run, (before, after), load.share() if engine.local else None)
        before, load = after, OtherLoad(engine.thoroughness.load_seconds)


def _trial(run: Run, plain_runs: Sequence[Run], other_load: float | None) -> Trial | None:
    tokens = min(map(metrics.decoded_tokens, (run, *plain_runs)))
    seconds = metrics.seconds_to(run, tokens)
    if not seconds:
        return None
    reported = run.draft_counts is not None or all(step.proposed is not None for step in run.rounds)
    counts = metrics.draft_counts(run)
    return Trial(
        tokens=tokens,
        seconds=seconds,
        plain_seconds=sum(metrics.seconds_to(plain, tokens) for plain in plain_runs) / len(plain_runs),
        identical=all(metrics.divergence(plain, run) is None for plain in plain_runs),
        rounds=len(run.rounds) if run.passes_known else None,
        run_tokens=metrics.decoded_tokens(run) + run.hidden_tokens,
        proposed=counts.proposed if reported else None,
        accepted=counts.accepted if reported else None,
        other_load=other_load,
        plain_steps=tuple(map(_token_seconds, plain_runs)),
        round_steps=tuple(
            (len(step.committed), -1 if step.proposed is None else len(step.proposed), _rounded(step.seconds))
            for step in run.rounds
        ),
    )


def _token_seconds(run: Run) -> tuple[float, ...]:
    """Divide the time of a round, or of a server's chunk, equally among its tokens."""
    return tuple(_rounded(step.seconds / len(step.committed)) for step in run.rounds for _ in step.committed)


def _rounded(seconds: float) -> float:
    """Round to a tenth of a microsecond, which keeps files small."""
    return max(round(seconds, 7), 1e-7)


def repeats(
    engine: Engine, comparison: Comparison, *, number: int | None = None, stop: Callable[[], bool] = lambda: False
) -> Iterator[Comparison]:
    """Repeat a finished race, alternating speculative and plain runs; yield the comparison after each repeat.

    Runs `number` repeats or, until more would not narrow the interval, as many as fit into the time that the race
    took, but at least `REPEAT_SECONDS`. Yields nothing if the race took more than `MAX_SECONDS` or was stopped, or if
    a setting changed during it. Once `stop` returns True, the unfinished repeat is dropped.
    """
    sides = comparison.plain, comparison.speculative
    if comparison.settings_updates or any(run.finish_reason == "cancelled" or not run.rounds for run in sides):
        return
    one = metrics.race_seconds(comparison)
    if number is None and one > MAX_SECONDS:
        return
    until = None if number is not None else perf_counter() + max(REPEAT_SECONDS, one)
    settings = [comparison.settings] * (engine.thoroughness.repeats if number is None else number)
    before = None if number is not None else comparison.plain  # then a repeat takes as long as the race
    for trial in trials(engine, comparison.prompt, settings, comparison.costs, stop, comparison.history, before):
        if trial is None:
            return
        comparison = comparison.model_copy(update={"repeats": (*comparison.repeats, trial)})
        yield comparison
        if until is None:
            continue
        speedup = of_comparison(comparison)
        if perf_counter() + one > until or (speedup and speedup.width_from != "runs"):
            return


def with_repeats(
    engine: Engine,
    comparison: Comparison,
    *,
    costs: Costs | None = None,
    number: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Comparison]:
    """Add step costs and repeats to a finished race; yield each comparison. A failure keeps the finished race."""
    if comparison.costs is None and costs is not None:
        comparison = comparison.model_copy(update={"costs": costs})
        yield comparison
    if not comparison.repeats:
        with suppress(SpecdemoError):
            for repeated in repeats(engine, comparison, number=number, stop=stop):
                comparison = repeated
                yield comparison


def race_with_repeats(
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

    Yields what `race` does, and the comparison after each repeat. Errors after the race only end the repeats.
    """
    if costs is None and settings.strategy.needs_costs:
        yield Phase("calibrating")
        costs = known_costs(engine, stop=stop)
    comparison = None
    for event in race(engine, prompt, settings, history=history, costs=costs, stop=stop):
        comparison = event if isinstance(event, Comparison) else None
        yield event
    if comparison is None or stop():
        return
    for repeated in with_repeats(engine, comparison, number=number, stop=stop):
        comparison = repeated
        yield comparison
    if comparison.costs is None and not stop():
        yield Phase("calibrating")
        costs = known_costs(engine, stop=stop, seconds=metrics.race_seconds(comparison))  # no longer than the race
        yield from with_repeats(engine, comparison, costs=costs, number=0, stop=stop)
