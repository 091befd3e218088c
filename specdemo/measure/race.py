"""The race: two decoders on one machine, each on a clock that runs only while that side computes.

Sharing the machine step by step would be unfair to both, since each side evicts the other's weights from the
processor's caches. So they take turns in slices: always the side whose clock is behind, for at least
`SLICE_SECONDS`. `tests/benchmarks` measures what that costs against an undisturbed run.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from specdemo.engines.base import Decoder, Engine, rounds_of
from specdemo.errors import RunError
from specdemo.measure.other_load import OtherLoad
from specdemo.measure.warm_up import warm_up
from specdemo.progress import Phase
from specdemo.records import Comparison, Costs, FinishReason, Move, Request, Round, Run, Side, TraceSource, Turn
from specdemo.settings import GenerationSettings

SLICE_SECONDS = 0.2
WARM_UP_PROMPT = "Quick foxes jump over lazy dogs while seven wizards mix black quartz"
"""No word occurs twice, so prompt lookup finds little."""


@dataclass(frozen=True)
class Lap:
    """What one side did in one slice; the first lap of a side is its prefill, a single round."""

    side: Side
    rounds: tuple[Round, ...]
    finish_reason: FinishReason | None
    trace_source: TraceSource
    moves: tuple[Move, ...] = ()


class Moved(NamedTuple):
    """Where the controls that can be moved during a run stand now."""

    num_assistant_tokens: int
    assistant_confidence_threshold: float


RaceEvent = Phase | Lap | Comparison


def race(
    engine: Engine,
    prompt: str,
    settings: GenerationSettings,
    *,
    history: Sequence[Turn] = (),
    stop: Callable[[], bool] = lambda: False,
    costs: Costs | None = None,
    slice_seconds: float = SLICE_SECONDS,
    moved: Callable[[], Moved | None] = lambda: None,
) -> Iterator[RaceEvent]:
    """Decode the prompt on both sides; yield laps as they happen and the comparison at the end.

    In a chat, `history` holds the earlier turns.

    `stop` is checked between any two rounds. Once it returns True the comparison ends with what there is; if that
    happens before both sides have their first token, there is none. So is `moved`: what it returns is in force from
    the next round on, on decoders that can follow it.

    Raises:
        SpecdemoError: the prompt or the settings cannot be run, or an engine failed; both requests are freed.
    """
    request = Request.of(prompt, settings, tuple(history))
    # with prefix caching the prompt must be new when its prefill is timed
    rehearsed = (
        replace(request, prompt=WARM_UP_PROMPT, history=()) if engine.pair.runtime.enable_prefix_caching else request
    )
    lanes = [
        _Lane("plain", engine.decoder(request.plain)),
        _Lane("speculative", engine.decoder(request, costs), settings, moved),
    ]
    with ExitStack() as opened:
        warmed = yield from warm_up(engine, {"plain": rehearsed.plain, "speculative": rehearsed}, costs, stop)
        load = OtherLoad()
        for lane in lanes:
            opened.callback(lane.rounds.close)
            if stop():
                return
            for progress in lane.prefill():
                yield progress
                if isinstance(progress, Phase) and stop():
                    return
        while (unfinished := [lane for lane in lanes if lane.decoder.finish_reason is None]) and not stop():
            ahead = unfinished[0] if settings.sequential else min(unfinished, key=lambda lane: lane.clock)
            yield ahead.lap(slice_seconds, stop)
        plain, speculative, other_load = lanes[0].run(), lanes[1].run(), load.share()
        yield Comparison(
            pair=engine.pair,
            prompt=prompt,
            settings=settings,
            environment=engine.environment,
            plain=plain,
            speculative=speculative,
            trace_source=lanes[1].decoder.trace_source,
            costs=costs,
            draft_agreement=_agreement(lanes[1].decoder),
            history=tuple(history),
            warm_up=warmed,
            other_load=other_load,
            moves=tuple(lanes[1].moves),
        )


def _agreement(decoder: Decoder) -> tuple[bool, ...] | None:
    """What the draft would have proposed; a failure here must not cost the finished runs."""
    try:
        return decoder.draft_agreement()
    except (RunError, RuntimeError):
        return None


class _Lane:
    """One side: its decoder, what it did so far, and its clock."""

    def __init__(
        self,
        side: Side,
        decoder: Decoder,
        settings: GenerationSettings | None = None,
        moved: Callable[[], Moved | None] = lambda: None,
    ) -> None:
        self.side: Side = side
        self.decoder = decoder
        self.rounds = decoder.rounds()
        self.clock = 0.0
        self.moves: list[Move] = []
        self._settings = settings
        self._moved = moved
        self._done: list[Round] = []

    def prefill(self) -> Iterator[Phase | Lap]:
        for step in self.rounds:
            if isinstance(step, Round):
                yield self._record([step])
                return
            yield Phase("prefilling", *step)

    def lap(self, seconds: float, stop: Callable[[], bool]) -> Lap:
        rounds, until, before = list[Round](), self.clock + seconds, len(self.moves)
        while self.decoder.finish_reason is None and self.clock < until and not stop():
            self._follow(len(self._done) + len(rounds))
            step = next(self.rounds)
            assert isinstance(step, Round), "progress of the prefill is over"
            rounds.append(step)
            self.clock += step.seconds
        return replace(self._record(rounds), moves=tuple(self.moves[before:]))

    def _follow(self, number: int) -> None:
        """Move the settings to where the controls are, for this round and those after it."""
        moved = self._moved()
        if moved is None or self._settings is None:
            return
        settings = self._settings.model_copy(update=moved._asdict())
        if settings.way == self._settings.way or not self.decoder.follow(settings.way):
            return
        self._settings = settings
        effective = "assistant_confidence_threshold" if settings.policy == "confidence" else "num_assistant_tokens"
        self.moves.append(Move.model_validate({"round": number, effective: getattr(settings, effective)}))

    def run(self) -> Run:
        prefill, *rounds = self._done
        reason = self.decoder.finish_reason or "cancelled"
        return Run(prefill=prefill, rounds=tuple(rounds), finish_reason=reason)

    def _record(self, rounds: list[Round]) -> Lap:
        traced = self.decoder.trace(rounds)  # off the clock
        self._done += traced
        return Lap(self.side, tuple(traced), self.decoder.finish_reason, self.decoder.trace_source)


def run_alone(decoder: Decoder, rounds: int | None = None, stop: Callable[[], bool] = lambda: False) -> Run:
    """One decoder on its own: to its end, for a number of rounds, or until `stop` returns True after a round."""
    done: list[Round] = []
    with closing(rounds_of(decoder)) as all_rounds:
        for step in islice(all_rounds, rounds and rounds + 1):
            done.append(step)
            if stop():
                break
        prefill, *rest = decoder.trace(done)
    return Run(prefill=prefill, rounds=tuple(rest), finish_reason=decoder.finish_reason or "cancelled")
