"""The race: two decoders on one machine, each on a clock that runs only while that side computes.

Sharing the machine step by step would be unfair to both, since each side evicts the other's weights from the
processor's caches. So they take turns in slices: always the side whose clock is behind, for at least
`SLICE_SECONDS`. `tests/benchmarks` measures what that costs against an undisturbed run.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import islice

from specdemo.engines.base import Decoder, Engine, rounds_of
from specdemo.errors import RunError
from specdemo.measure.divergence import find_divergence
from specdemo.measure.other_load import OtherLoad
from specdemo.measure.side import LiveSettings, RaceSide
from specdemo.measure.warm_up import WARM_UP_PROMPT, warm_up
from specdemo.progress import Phase
from specdemo.records import (
    SIDES,
    Comparison,
    Costs,
    Request,
    Round,
    Run,
    Side,
    Slice,
    Turn,
    WarmUp,
)
from specdemo.settings import GenerationSettings

SLICE_SECONDS = 0.2

RaceEvent = Phase | Slice | Comparison


def race(
    engine: Engine,
    prompt: str,
    settings: GenerationSettings,
    *,
    history: Sequence[Turn] = (),
    stop: Callable[[], bool] = lambda: False,
    costs: Costs | None = None,
    slice_seconds: float = SLICE_SECONDS,
    moved: Callable[[], LiveSettings | None] = lambda: None,
) -> Iterator[RaceEvent]:
    """Decode the prompt on both sides; yield slices as they happen and the comparison at the end.

    In a chat, `history` holds the earlier turns.

    `stop` is checked between any two rounds. Once it returns True the comparison ends with what there is; if that
    happens before both sides have their first token, there is none. So is `moved`: what it returns is in force from
    the next round on, on decoders that can follow it.

    Raises:
        SpecdemoError: the prompt or the settings cannot be run, or an engine failed; both requests are freed.
    """
    request = Request.of(prompt, settings, tuple(history))
    runners = {
        side: RaceSide(side, engine.decoder(each, costs), each.strategy, moved)
        for side, each in _sides(engine, request)
    }
    with ExitStack() as opened:
        for runner in runners.values():
            opened.callback(runner.rounds.close)
        warmed = yield from _warm_up(engine, runners, request, costs, stop)
        load = OtherLoad(engine.thoroughness.load_seconds)
        apart = engine.remote and not settings.at_once
        for group in [[runner] for runner in runners.values()] if apart else [list(runners.values())]:
            yield from _prefill(group, stop, together=settings.at_once)
            while (unfinished := [runner for runner in group if not runner.over]) and not stop():
                ahead = unfinished[0] if settings.sequential else min(unfinished, key=lambda runner: runner.clock)
                yield from ahead.slice(slice_seconds, stop)
        if not all(runner.begun or runner.over for runner in runners.values()):
            return
        _check_any(runners.values())
        other_load = None if engine.remote else load.share()
        plain, speculative = (runners[side].run() if side in runners else Run.without("absent") for side in SIDES)
        last = runners.get("speculative") or runners["plain"]
        comparison = Comparison(
            pair=engine.pair,
            prompt=prompt,
            settings=settings,
            environment=engine.environment,
            plain=plain,
            speculative=speculative,
            trace_source=last.decoder.trace_source,
            costs=costs,
            draft_agreement=_agreement(last.decoder),
            history=request.history,
            warm_up=warmed,
            other_load=other_load,
            moves=tuple(last.moves),
            failures={side: runner.failure for side, runner in runners.items() if runner.failure is not None},
        )
    yield comparison.model_copy(update={"divergence": None if stop() else find_divergence(engine, comparison)})


def _sides(engine: Engine, request: Request) -> Iterator[tuple[Side, Request]]:
    """What each side that the engine has is asked to do."""
    for side in engine.sides:
        yield side, request.plain if side == "plain" else request


def _warm_up(
    engine: Engine, runners: Mapping[Side, RaceSide], request: Request, costs: Costs | None, stop: Callable[[], bool]
) -> Generator[Phase, None, dict[Side, WarmUp]]:
    """Warm both sides up, in turns; servers one after the other, since one of them may fail."""
    if engine.remote or engine.pair.runtime.enable_prefix_caching:
        # with prefix caching the prompt must be new when its prefill is timed
        request = replace(request, prompt=WARM_UP_PROMPT, history=())
    requests = dict(_sides(engine, request))
    if not engine.remote:
        return (yield from warm_up(engine, requests, costs, stop))
    warmed: dict[Side, WarmUp] = {}
    for side, runner in runners.items():
        with runner.kept():
            warmed |= yield from warm_up(engine, {side: requests[side]}, costs, stop)
    return warmed


def _prefill(runners: Sequence[RaceSide], stop: Callable[[], bool], *, together: bool) -> Iterator[Phase | Slice]:
    """The first token of each side, unless stopped; `together`: both requests are sent before either is answered."""
    begun = [runner.prefill() for runner in runners]
    if together:
        yield from (first for first in [next(one, None) for one in begun] if first is not None)
    for one in begun:
        if stop():
            return
        for progress in one:
            yield progress
            if isinstance(progress, Phase) and stop():
                return


def _check_any(runners: Collection[RaceSide]) -> None:
    """Raise what went wrong first, if no side has any token."""
    errors = [runner.error for runner in runners if runner.error is not None and not runner.begun]
    if errors and len(errors) == len(runners):
        raise errors[0]


def _agreement(decoder: Decoder) -> tuple[bool, ...] | None:
    """What the draft would have proposed; a failure here must not cost the finished runs."""
    try:
        return decoder.draft_agreement()
    except (RunError, RuntimeError):
        return None


def run_alone(decoder: Decoder, rounds: int | None = None, stop: Callable[[], bool] = lambda: False) -> Run:
    """One decoder on its own: to its end, for a number of rounds, or until `stop` returns True after a round."""
    done: list[Round] = []
    with closing(rounds_of(decoder)) as all_rounds:
        for step in islice(all_rounds, rounds and rounds + 1):
            done.append(step)
            if stop():
                break
        prefill, *rest = decoder.with_proposals(done)
    run = Run(prefill=prefill, rounds=tuple(rest), finish_reason=decoder.finish_reason or "cancelled")
    return decoder.finalized(run)
