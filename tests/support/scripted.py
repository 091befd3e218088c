"""An engine without weights, for exact tests: it generates given words as tokens, on a simulated clock."""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from time import sleep

from specdemo.capabilities import EngineName
from specdemo.engines.base import (
    PREFILL_CHUNK,
    Arrival,
    Batch,
    Decoder,
    Engine,
    Prefill,
    RoundCounts,
    Thoroughness,
    check_prompt,
    rounds_of,
)
from specdemo.errors import EngineError
from specdemo.records import (
    SIDES,
    Costs,
    DraftToken,
    Environment,
    Model,
    ModelPair,
    Request,
    Round,
    Run,
    Side,
    Token,
    outcomes_from_ids,
)
from specdemo.strategies import Constant, Plain, Strategy
from tests.support import BRIEF

WRONG = " um"
_OTHER_LOOKAHEAD = 4  # of policies that choose their own: all are treated as constant
_ENVIRONMENT = dict.fromkeys(Environment.model_fields, "scripted") | {"threads": 1}


@dataclass(eq=False)
class ScriptedEngine(Engine):
    """Generates `words`, then end of text; its draft proposes the same words except at `wrong` positions.

    A plain step takes `step` seconds, a draft step `draft`, a pass over n tokens `step + (n − 1) · extra`. The round
    that begins at `fails_at` fails, once. `real_time`: it sleeps these seconds. `on_request` is called with
    this engine and each request; `on_run` returns what becomes of each run.
    """

    words: Sequence[str] = (" the", " quick", " brown", " fox", " jumps", " over", " a", " lazy", " dog")
    wrong: Sequence[int] = ()
    step: float = 0.01
    draft: float = 0.002
    extra: float = 0.001
    prefill: float = 0.05
    real_time: bool = False
    name: EngineName = "traced"
    sides: tuple[Side, ...] = SIDES
    fails_at: int | None = None
    diverges_at: int | None = None
    rounding: float = 0.001
    thoroughness: Thoroughness = BRIEF
    on_request: Callable[["ScriptedEngine", Request], object] = lambda engine, request: None
    on_run: Callable[[Run], Run] = lambda run: run
    requests: int = field(default=0, init=False)
    pair: ModelPair = field(init=False)
    environment: Environment = field(init=False)

    def __post_init__(self) -> None:
        model = Model(name="scripted", architecture="scripted", parameters=0, weights="none")
        self.pair = ModelPair(name="scripted", target=model, draft=model)
        self.environment = Environment.model_validate(_ENVIRONMENT)

    def decoder(self, request: Request, costs: Costs | None = None) -> Decoder:
        self.on_request(self, request)
        return _ScriptedDecoder(self, request)

    def batch(self, strategy: Strategy) -> Batch:
        return ScriptedBatch(self)

    def pass_seconds(self, prompt: str, tokens: int) -> Generator[float]:
        while True:
            yield self.step + (tokens - 1) * self.extra

    def log_probabilities(
        self, request: Request, before: Sequence[int], tokens: Sequence[int], *, one_by_one: bool
    ) -> list[float] | None:
        return [math.log(0.5) + self.rounding * one_by_one for _ in tokens]

    def close(self) -> None: ...


class _ScriptedDecoder(Decoder):
    def __init__(self, engine: ScriptedEngine, request: Request) -> None:
        self._engine, self._request = engine, request
        self._lookahead, self._position = _lookahead(request.strategy), 0

    def rounds(self) -> Generator[Prefill | Round]:
        check_prompt(self._request)
        self._engine.requests += 1
        try:
            self.prompt_tokens = words = len(self._request.prompt.split())
            for done in range(PREFILL_CHUNK, words, PREFILL_CHUNK):
                yield Prefill(done, words)
            yield self._round([], 1, self._engine.prefill)
            while self.finish_reason is None:
                yield self._step()
        finally:
            self._engine.requests -= 1

    def _step(self) -> Round:
        engine, wanted = self._engine, self._request.max_new_tokens - self._position
        if engine.fails_at is not None and engine.fails_at <= self._position:
            engine.fails_at = None
            raise EngineError()
        positions = range(self._position, self._position + min(self._lookahead, wanted - 1))
        proposed = [WRONG if position in engine.wrong else self._word(position) for position in positions]
        right = [word == self._word(position) for word, position in zip(proposed, positions, strict=True)]
        accepted = [*right, False].index(False)
        seconds = len(proposed) * engine.draft + engine.step + len(proposed) * engine.extra
        return self._round(proposed, accepted + 1, seconds)

    def update_strategy(self, strategy: Strategy) -> bool:
        if not isinstance(strategy, Constant) or not isinstance(self._request.strategy, Constant):
            return False
        self._lookahead = strategy.num_assistant_tokens
        return True

    def finalized(self, run: Run) -> Run:
        return self._engine.on_run(run)

    def _word(self, position: int) -> str:
        if self._lookahead and position == self._engine.diverges_at:
            return " otherwise"
        return self._engine.words[position % len(self._engine.words)]

    def _round(self, proposed: list[str], committed: int, seconds: float) -> Round:
        if self._engine.real_time:
            sleep(seconds)
        last = len(self._engine.words)
        if not self._request.ignore_eos:
            committed = min(committed, last - self._position)
        words = [self._word(self._position + index) for index in range(committed)]
        self._position += committed
        if self._position >= self._request.max_new_tokens:
            self.finish_reason = "length"
        elif self._position >= last and not self._request.ignore_eos:
            self.finish_reason = "stop"
        ids = [_id(word) for word in proposed]
        outcomes = outcomes_from_ids(ids, [_id(word) for word in words], ended=self.finish_reason == "stop") or []
        return Round(
            committed=tuple(Token(id=_id(word), text=word) for word in words),
            seconds=seconds,
            proposed=tuple(
                DraftToken(id=_id(word), text=word, outcome=outcome)
                for word, outcome in zip(proposed, outcomes, strict=True)
            ),
            draft_seconds=len(proposed) * self._engine.draft,
            verify_seconds=seconds - len(proposed) * self._engine.draft,
        )


def _lookahead(strategy: Strategy) -> int:
    return 0 if isinstance(strategy, Plain) else strategy.fixed_lookahead or _OTHER_LOOKAHEAD


def _id(word: str) -> int:
    return int.from_bytes(word.encode()[:6], "big")


class ScriptedBatch(Batch):
    receives_passes = True

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine
        self._seconds = 0.0
        self._running: dict[int, _Running] = {}

    def now(self) -> float:
        return self._seconds

    def submit(self, number: int, request: Request) -> None:
        self._running[number] = _Running(replace(self._engine, real_time=False), request)

    def receive(self) -> Sequence[Arrival]:
        rounds = {number: next(running.rounds) for number, running in self._running.items()}
        decoding = [step for number, step in rounds.items() if not self._running[number].prefilling]
        passed = sum(step.seconds for number, step in rounds.items() if self._running[number].prefilling)
        if decoding:
            tokens = sum(1 + len(step.proposed or ()) for step in decoding)
            passed += max(step.draft_seconds or 0.0 for step in decoding)
            passed += self._engine.step + (tokens - 1) * self._engine.extra
        self._seconds += passed
        if self._engine.real_time:
            sleep(passed)
        return [self._arrival(number, step) for number, step in rounds.items()]

    def close(self) -> None:
        for running in self._running.values():
            running.rounds.close()
        self._running = {}

    def _arrival(self, number: int, step: Round) -> Arrival:
        running = self._running[number]
        counts = () if running.prefilling else (RoundCounts(len(step.proposed or ()), step.accepted),)
        running.prefilling = False
        if running.decoder.finish_reason is not None:
            del self._running[number]
        ids = tuple(token.id for token in step.committed if token.id is not None)
        return Arrival(number, self._seconds, len(ids), ids, counts, running.decoder.finish_reason)


class _Running:
    def __init__(self, engine: Engine, request: Request) -> None:
        self.decoder = engine.decoder(request)
        self.rounds = rounds_of(self.decoder)
        self.prefilling = True
