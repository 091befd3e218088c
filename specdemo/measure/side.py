"""One side of a race: a decoder with a clock that runs only while it computes, and its rounds so far."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from specdemo.engines.base import Decoder
from specdemo.errors import ServerError
from specdemo.progress import Phase
from specdemo.records import FinishReason, Move, Round, Run, Side, Slice
from specdemo.strategies import Strategy


class LiveSettings(NamedTuple):
    """Current values of the controls that can be moved during a run."""

    num_assistant_tokens: int
    assistant_confidence_threshold: float

    def of(self, strategy: Strategy) -> Strategy:
        """This decoding strategy, with what it has of them moved there."""
        values: dict[str, Any] = self._asdict()
        return replace(strategy, **{name: values[name] for name in values.keys() & strategy.parameters()})

    def noted(self, number: int, strategy: Strategy) -> Move:
        """The record of what was moved in a round of this way."""
        if "assistant_confidence_threshold" in strategy.parameters():
            return Move(round=number, assistant_confidence_threshold=self.assistant_confidence_threshold)
        return Move(round=number, num_assistant_tokens=self.num_assistant_tokens)


class RaceSide:
    """One side: its decoder, what it did so far, and its clock."""

    def __init__(
        self, side: Side, decoder: Decoder, strategy: Strategy, moved: Callable[[], LiveSettings | None]
    ) -> None:
        """`moved` returns the current live settings, or None where no control was moved."""
        self.side: Side = side
        self.decoder = decoder
        self.rounds = decoder.rounds()
        self.clock = 0.0
        self.error: ServerError | None = None
        self.moves: list[Move] = []
        self._strategy = strategy
        self._moved = moved
        self._done: list[Round] = []

    @property
    def begun(self) -> bool:
        """Whether it has a token."""
        return bool(self._done)

    @property
    def over(self) -> bool:
        """Whether nothing more comes."""
        return self.error is not None or self.decoder.finish_reason is not None

    @property
    def failure(self) -> str | None:
        """Why it ended too early, if it did."""
        return None if self.error is None else str(self.error)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep what there is if the server fails."""
        try:
            yield
        except ServerError as error:
            self.error = error

    def prefill(self) -> Iterator[Phase | Slice]:
        """Up to its first token: how much of the prompt is read, then the first slice."""
        if self.over:
            return
        with self.kept():
            for step in self.rounds:
                if isinstance(step, Round):
                    yield self._record([step])
                    return
                yield Phase("prefilling", *step)

    def slice(self, seconds: float, stop: Callable[[], bool]) -> Iterator[Slice]:
        """Its rounds until it has computed for so long, or is over, or stopped."""
        rounds, until, before = list[Round](), self.clock + seconds, len(self.moves)
        with self.kept():
            while not self.over and self.clock < until and not stop():
                self._follow(len(self._done) + len(rounds))
                step = next(self.rounds)
                assert isinstance(step, Round), "progress of the prefill is over"
                rounds.append(step)
                self.clock += step.seconds
        yield replace(self._record(rounds), moves=tuple(self.moves[before:]))

    def _follow(self, number: int) -> None:
        """Move the decoding strategy to where the controls are, for this round and those after it."""
        moved = self._moved()
        if moved is None:
            return
        strategy = moved.of(self._strategy)
        if strategy != self._strategy and self.decoder.update_strategy(strategy):
            self._strategy = strategy
            self.moves.append(moved.noted(number, strategy))

    def run(self) -> Run:
        """What it did, once nothing more is asked of it."""
        reason: FinishReason = "failed" if self.error is not None else self.decoder.finish_reason or "cancelled"
        if not self._done:
            return Run.without("failed")
        prefill, *rounds = self._done
        return self.decoder.finalized(Run(prefill=prefill, rounds=tuple(rounds), finish_reason=reason))

    def _record(self, rounds: list[Round]) -> Slice:
        traced = self.decoder.with_proposals(rounds)  # off the clock
        self._done += traced
        reason = self.decoder.finish_reason or ("failed" if self.error is not None else None)
        return Slice(self.side, tuple(traced), reason, self.decoder.trace_source)
