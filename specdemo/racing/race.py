"""The race: two decoders on one machine, each with a clock that runs only while that side computes.

If they took turns step by step, each side would evict the other's weights from the processor's caches. Instead, the
side whose clock is behind computes for at least `SLICE_SECONDS`; docs/performance.md says what that costs. If greedy
outputs diverge, the engine reports the target's probabilities of both tokens at the first difference. A pass over
several tokens rounds differently, by as much as is measured on the preceding text, so two almost equally likely
tokens can change places. A larger gap may be a fault of engine or model.
"""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import islice

from specdemo.engines.base import Decoder, Engine, rounds_of
from specdemo.errors import ServerError, SpecdemoError
from specdemo.racing.warm_up import WARM_UP_PROMPT, OtherLoad, warm_up
from specdemo.records import (
    SIDES,
    Alternative,
    Comparison,
    Costs,
    Divergence,
    FinishReason,
    Phase,
    Request,
    Round,
    Run,
    SettingsUpdate,
    Side,
    Slice,
    Turn,
    WarmUp,
)
from specdemo.results import metrics
from specdemo.settings import GenerationSettings
from specdemo.strategies import Strategy

SLICE_SECONDS = 0.2
_ROUNDING_TOKENS = 16  # preceding tokens on which rounding is measured
RaceEvent = Phase | Slice | Comparison


LiveSettings = Mapping[str, float]  # current values of settings that can be changed during a run, by name


class RaceSide:
    def __init__(
        self, name: Side, decoder: Decoder, strategy: Strategy, live_settings: Callable[[], LiveSettings]
    ) -> None:
        self.name: Side = name
        self.decoder, self.rounds, self.clock = decoder, decoder.rounds(), 0.0
        self.error: ServerError | None = None
        self.settings_updates: list[SettingsUpdate] = []
        self._strategy, self._live_settings = strategy, live_settings
        self._done: list[Round] = []

    @property
    def started(self) -> bool:
        return bool(self._done)

    @property
    def finish_reason(self) -> FinishReason | None:
        return "failed" if self.error is not None else self.decoder.finish_reason

    @contextmanager
    def catch_error(self) -> Iterator[None]:
        """A server that fails ends its side, not the race."""
        try:
            yield
        except ServerError as error:
            self.error = error

    def prefill(self, stop: Callable[[], bool]) -> Iterator[Phase | Slice]:
        with self.catch_error():
            while self.finish_reason is None and not stop():
                step = next(self.rounds)
                if isinstance(step, Round):
                    yield self._record([step])
                    return
                yield Phase("prefilling", *step)

    def slice(self, seconds: float, stop: Callable[[], bool]) -> Iterator[Slice]:
        """Compute for `seconds`, or until the side is over or stopped; yield the slice."""
        rounds, until, before = list[Round](), self.clock + seconds, len(self.settings_updates)
        with self.catch_error():
            while self.finish_reason is None and self.clock < until and not stop():
                self._apply_live_settings(len(self._done) + len(rounds))
                step = next(self.rounds)
                assert isinstance(step, Round), "progress of the prefill is over"
                rounds.append(step)
                self.clock += step.seconds
        yield self._record(rounds, self.settings_updates[before:])

    def _apply_live_settings(self, number: int) -> None:
        current = vars(self._strategy)
        live = self._live_settings() if current else {}  # the plain side has none
        values = {
            name: type(value)(live[name])  # as a float arrives what may be a whole number
            for name, value in current.items()
            if value is not None and live.get(name, value) != value
        }
        strategy = replace(self._strategy, **values)
        if values and self.decoder.update_strategy(strategy):
            self._strategy = strategy
            self.settings_updates.append(SettingsUpdate(round=number, values=values))

    def result(self) -> Run:
        if not self._done:
            return Run.without("failed" if self.error is not None else "cancelled")
        reason = self.finish_reason or "cancelled"
        prefill, *rounds = self._done
        return self.decoder.finalized(Run(prefill=prefill, rounds=tuple(rounds), finish_reason=reason))

    def _record(self, rounds: list[Round], updates: Sequence[SettingsUpdate] = ()) -> Slice:
        traced = self.decoder.with_proposals(rounds)  # off the clock
        self._done += traced
        return Slice(
            side=self.name,
            rounds=tuple(traced),
            finish_reason=self.finish_reason,
            trace_source=self.decoder.trace_source,
            settings_updates=tuple(updates),
        )


def race(
    engine: Engine,
    prompt: str,
    settings: GenerationSettings,
    *,
    history: Sequence[Turn] = (),
    stop: Callable[[], bool] = lambda: False,
    costs: Costs | None = None,
    slice_seconds: float = SLICE_SECONDS,
    live_settings: Callable[[], LiveSettings] = dict,
) -> Iterator[RaceEvent]:
    """Decode the prompt on both sides; yield slices as they happen and the comparison at the end.

    `stop` and `live_settings` are called between rounds; settings apply from the next one, where the decoder supports
    it. Stopped early, a side can be empty; without any token there is no comparison.
    """
    request = Request.of(prompt, settings, tuple(history))
    sides = {
        name: RaceSide(name, engine.decoder(side_request, costs), side_request.strategy, live_settings)
        for name, side_request in _requests(engine, request).items()
    }
    with ExitStack() as stack:
        for side in sides.values():
            stack.callback(side.rounds.close)
        warmed = yield from warm_up_sides(engine, sides, request, costs, stop)
        load = OtherLoad(engine.thoroughness.load_seconds)
        # a server decodes on while nobody reads, so servers take turns by whole runs
        for group in [list(sides.values())] if engine.local else [[side] for side in sides.values()]:
            for side in group:
                yield from side.prefill(stop)
            while (unfinished := [side for side in group if side.finish_reason is None]) and not stop():
                behind = unfinished[0] if settings.sequential else min(unfinished, key=lambda side: side.clock)
                yield from behind.slice(slice_seconds, stop)
        if not any(side.started for side in sides.values()):
            for error in filter(None, [side.error for side in sides.values()]):
                raise error
            return
        other_load = load.share() if engine.local else None
        plain, speculative = (sides[name].result() if name in sides else Run.without("absent") for name in SIDES)
        last = sides.get("speculative") or sides["plain"]
        comparison = Comparison(
            pair=engine.pair,
            prompt=prompt,
            settings=settings,
            environment=engine.environment,
            plain=plain,
            speculative=speculative,
            trace_source=last.decoder.trace_source,
            costs=costs,
            history=request.history,
            warm_up=warmed,
            other_load=other_load,
            settings_updates=tuple(last.settings_updates),
            failures={name: str(side.error) for name, side in sides.items() if side.error is not None},
        )
    yield comparison.model_copy(update={"divergence": None if stop() else find_divergence(engine, comparison)})


def _requests(engine: Engine, request: Request) -> dict[Side, Request]:
    return {name: request.plain if name == "plain" else request for name in engine.sides}


def warm_up_sides(
    engine: Engine, sides: Mapping[Side, RaceSide], request: Request, costs: Costs | None, stop: Callable[[], bool]
) -> Generator[Phase, None, dict[Side, WarmUp]]:
    """Warm up both sides in turns; servers one after the other, since one may fail."""
    if not engine.local or engine.pair.runtime.enable_prefix_caching:
        # with prefix caching, the timed prefill must see a new prompt
        request = replace(request, prompt=WARM_UP_PROMPT, history=())
    requests = _requests(engine, request)
    if engine.local:
        return (yield from warm_up(engine, requests, costs, stop))
    warmed: dict[Side, WarmUp] = {}
    for name, side in sides.items():
        with side.catch_error():
            warmed |= yield from warm_up(engine, {name: requests[name]}, costs, stop)
    return warmed


def run_alone(decoder: Decoder, rounds: int | None = None, stop: Callable[[], bool] = lambda: False) -> Run:
    """Run one decoder to its end, for a number of rounds, or until `stop` returns True after a round."""
    done: list[Round] = []
    with closing(rounds_of(decoder)) as all_rounds:
        for step in islice(all_rounds, rounds and rounds + 1):
            done.append(step)
            if stop():
                break
        prefill, *rest = decoder.with_proposals(done)
    run = Run(prefill=prefill, rounds=tuple(rest), finish_reason=decoder.finish_reason or "cancelled")
    return decoder.finalized(run)


def find_divergence(engine: Engine, comparison: Comparison) -> Divergence | None:
    """Return the first divergence of a greedy comparison; None if there is none or the engine cannot tell."""
    index = metrics.first_divergence(comparison)
    runs = comparison.plain, comparison.speculative
    if index is None or not engine.local or comparison.settings.do_sample:
        return None
    if any(index >= len(run.tokens) or len(run.token_ids) != len(run.tokens) for run in runs):
        return None  # one side ended there
    start = max(index - _ROUNDING_TOKENS, 0)
    before, texts = runs[0].token_ids[:start], [run.token_ids[start : index + 1] for run in runs]
    request = Request.of(comparison.prompt, comparison.settings, comparison.history).plain
    try:
        together, other = (engine.log_probabilities(request, before, text, one_by_one=False) for text in texts)
        one_by_one = engine.log_probabilities(request, before, texts[0], one_by_one=True)
    except (SpecdemoError, RuntimeError):
        return None
    if together is None or other is None or one_by_one is None:
        return None
    plain, speculative = (
        Alternative(id=text[-1], text=run.tokens[index].text, probability=math.exp(min(logs[-1], 0.0)))
        for text, run, logs in zip(texts, runs, (together, other), strict=True)
    )
    rounding = max(abs(one - several) for one, several in zip(one_by_one, together, strict=True))
    return Divergence(index=index, plain=plain, speculative=speculative, rounding=rounding)
