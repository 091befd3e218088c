"""The race: two decoders on one machine, each with a clock that runs only while that side computes.

Step by step, each side would evict the other's weights from the processor's caches. So they take turns in slices of
at least `SLICE_SECONDS`: always the side whose clock is behind; `tests/benchmarks` measures what that costs. If
greedy outputs diverge, the engine is asked for the target's probabilities of both tokens at the first difference. A
pass over several tokens rounds differently, by as much as is measured on the preceding text, so two almost equally
likely tokens can change places; otherwise engine or model are at fault.
"""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from specdemo.engines.base import Decoder, Engine, rounds_of
from specdemo.errors import RunError, ServerError, SpecdemoError
from specdemo.racing.warm_up import WARM_UP_PROMPT, OtherLoad, warm_up
from specdemo.records import (
    SIDES,
    Alternative,
    Comparison,
    Costs,
    Divergence,
    FinishReason,
    Move,
    Phase,
    Request,
    Round,
    Run,
    Side,
    Slice,
    Token,
    Turn,
    WarmUp,
)
from specdemo.results import metrics
from specdemo.settings import GenerationSettings
from specdemo.strategies import Strategy


class LiveSettings(NamedTuple):
    """Current values of the controls that can change during a run."""

    num_assistant_tokens: int
    assistant_confidence_threshold: float

    def of(self, strategy: Strategy) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if name in strategy.parameters()}


class RaceSide:
    def __init__(
        self, side: Side, decoder: Decoder, strategy: Strategy, moved: Callable[[], LiveSettings | None]
    ) -> None:
        self.side: Side = side
        self.decoder, self.rounds, self.clock = decoder, decoder.rounds(), 0.0
        self.error: ServerError | None = None
        self.moves: list[Move] = []
        self._strategy, self._moved = strategy, moved
        self._done: list[Round] = []

    @property
    def started(self) -> bool:
        return bool(self._done)

    @property
    def finish_reason(self) -> FinishReason | None:
        return "failed" if self.error is not None else self.decoder.finish_reason

    @contextmanager
    def kept(self) -> Iterator[None]:
        try:
            yield
        except ServerError as error:
            self.error = error

    def prefill(self, stop: Callable[[], bool]) -> Iterator[Phase | Slice]:
        with self.kept():
            while self.finish_reason is None and not stop():
                step = next(self.rounds)
                if isinstance(step, Round):
                    yield self._record([step])
                    return
                yield Phase("prefilling", *step)

    def slice(self, seconds: float, stop: Callable[[], bool]) -> Iterator[Slice]:
        """Decode until `seconds` have been computed, or the side is over or stopped; yield the slice."""
        rounds, until, before = list[Round](), self.clock + seconds, len(self.moves)
        with self.kept():
            while self.finish_reason is None and self.clock < until and not stop():
                self._follow(len(self._done) + len(rounds))
                step = next(self.rounds)
                assert isinstance(step, Round), "progress of the prefill is over"
                rounds.append(step)
                self.clock += step.seconds
        yield replace(self._record(rounds), moves=tuple(self.moves[before:]))

    def _follow(self, number: int) -> None:
        moved = self._moved()
        if moved is None:
            return
        values = moved.of(self._strategy)
        strategy = replace(self._strategy, **values)
        if strategy != self._strategy and self.decoder.update_strategy(strategy):
            self._strategy = strategy
            self.moves.append(Move(round=number, **values))

    def run(self) -> Run:
        if not self._done:
            return Run.without("failed" if self.error is not None else "cancelled")
        reason = self.finish_reason or "cancelled"
        prefill, *rounds = self._done
        return self.decoder.finalized(Run(prefill=prefill, rounds=tuple(rounds), finish_reason=reason))

    def _record(self, rounds: list[Round]) -> Slice:
        traced = self.decoder.with_proposals(rounds)  # off the clock
        self._done += traced
        return Slice(self.side, tuple(traced), self.finish_reason, self.decoder.trace_source)


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

    `stop` and `moved` are checked between rounds; settings returned by `moved` apply from the next one, where the
    decoder supports it. Stopped early, a side can be empty; without any token there is no comparison.
    """
    request = Request.of(prompt, settings, tuple(history))
    runners = {
        side: RaceSide(side, engine.decoder(each, costs), each.strategy, moved)
        for side, each in _sides(engine, request).items()
    }
    with ExitStack() as opened:
        for runner in runners.values():
            opened.callback(runner.rounds.close)
        warmed = yield from warm_up_sides(engine, runners, request, costs, stop)
        load = OtherLoad(engine.thoroughness.load_seconds)
        # a server does not wait to be asked for the next round, so the other's turn is over first
        for group in [[runner] for runner in runners.values()] if engine.remote else [list(runners.values())]:
            for runner in group:
                yield from runner.prefill(stop)
            while (unfinished := [runner for runner in group if runner.finish_reason is None]) and not stop():
                ahead = unfinished[0] if settings.sequential else min(unfinished, key=lambda runner: runner.clock)
                yield from ahead.slice(slice_seconds, stop)
        if not any(runner.started for runner in runners.values()):
            for error in filter(None, [runner.error for runner in runners.values()]):
                raise error
            return
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
            draft_agreement=_agreement(last.decoder) if last.started else None,
            history=request.history,
            warm_up=warmed,
            other_load=other_load,
            moves=tuple(last.moves),
            failures={side: str(runner.error) for side, runner in runners.items() if runner.error is not None},
        )
    yield comparison.model_copy(update={"divergence": None if stop() else find_divergence(engine, comparison)})


def _sides(engine: Engine, request: Request) -> dict[Side, Request]:
    return {side: request.plain if side == "plain" else request for side in engine.sides}


def warm_up_sides(
    engine: Engine, runners: Mapping[Side, RaceSide], request: Request, costs: Costs | None, stop: Callable[[], bool]
) -> Generator[Phase, None, dict[Side, WarmUp]]:
    """Warm up both sides in turns; servers one after the other, since one may fail."""
    if engine.remote or engine.pair.runtime.enable_prefix_caching:
        # with prefix caching, the timed prefill must see a new prompt
        request = replace(request, prompt=WARM_UP_PROMPT, history=())
    requests = _sides(engine, request)
    if not engine.remote:
        return (yield from warm_up(engine, requests, costs, stop))
    warmed: dict[Side, WarmUp] = {}
    for side, runner in runners.items():
        with runner.kept():
            warmed |= yield from warm_up(engine, {side: requests[side]}, costs, stop)
    return warmed


def _agreement(decoder: Decoder) -> tuple[bool, ...] | None:
    """Return the draft's agreement. No failure from here on must cost the finished runs."""
    try:
        return decoder.draft_agreement()
    except (RunError, RuntimeError):
        return None


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


_LAST = 16  # preceding tokens on which rounding is measured


def find_divergence(engine: Engine, comparison: Comparison) -> Divergence | None:
    """Return the first divergence of a greedy comparison, or None if there is none or the engine cannot tell."""
    index = metrics.first_divergence(comparison)
    runs = comparison.plain, comparison.speculative
    if index is None or engine.remote or comparison.settings.do_sample:
        return None
    if any(index >= len(run.tokens) or len(run.token_ids) != len(run.tokens) for run in runs):
        return None  # one side ended there
    common, (plain, speculative) = runs[0].token_ids[:index], (run.tokens[index] for run in runs)
    before, last = common[:-_LAST], common[-_LAST:]
    request = Request.of(comparison.prompt, comparison.settings, comparison.history).plain
    try:
        together, other = (
            engine.log_probabilities(request, before, [*last, *_id(token)], one_by_one=False)
            for token in (plain, speculative)
        )
        apart = engine.log_probabilities(request, before, [*last, *_id(plain)], one_by_one=True)
    except (SpecdemoError, RuntimeError):
        return None
    if together is None or other is None or apart is None:
        return None
    return Divergence(
        index=index,
        plain=_alternative(plain, together[-1]),
        speculative=_alternative(speculative, other[-1]),
        rounding=max(abs(one - several) for one, several in zip(apart, together, strict=True)),
    )


def _id(token: Token) -> list[int]:
    return [] if token.id is None else [token.id]


def _alternative(token: Token, logarithm: float) -> Alternative:
    assert token.id is not None, "all ids are known"
    return Alternative(id=token.id, text=token.text, probability=math.exp(min(logarithm, 0.0)))
