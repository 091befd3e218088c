"""The engine that decodes with `openvino_genai`. Four facts about version 2026.4 shape it, each covered by a test:

- After a failed step every later request on the pipeline fails, so we discard it and build a new one when needed.
- A request that does not fit into the KV cache raises no error; its status becomes IGNORED.
- One step advances every request of a batch by one round, and prefills new ones (continuous batching).
- The pipeline drops cancelled requests in its next step.
"""

import math
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count, islice
from time import perf_counter

import openvino_genai

from specdemo.engines.base import (
    PREFILL_CHUNK,
    THOROUGH,
    Arrival,
    Batch,
    Decoder,
    Engine,
    Prefill,
    RoundCounts,
    Thoroughness,
    counted_drafts,
    rounds_of,
)
from specdemo.engines.formats import reports_probabilities
from specdemo.engines.genai.pipelines import Output, Pipelines, kind_of
from specdemo.engines.genai.replay import Tracer
from specdemo.engines.text import IncrementalText
from specdemo.errors import PromptError
from specdemo.models.checks import check_strategy
from specdemo.models.devices import describe_environment
from specdemo.records import Costs, DraftToken, FinishReason, ModelPair, Request, Round, Side, Token
from specdemo.settings import Sampling
from specdemo.strategies import Constant, Lookup, Plain, Strategy

_MAX_TOKENS = 200  # per series of passes: enough for eleven passes over seventeen tokens
_NGRAM = 3


class GenAIEngine(Engine):
    name = "genai"

    def __init__(self, pair: ModelPair, side: Side | None = None, *, thoroughness: Thoroughness = THOROUGH) -> None:
        self.pair = pair
        self.thoroughness = thoroughness
        self.pipelines = Pipelines(pair, lazy=side is not None)
        self.environment = describe_environment(pair)

    def decoder(self, request: Request, costs: Costs | None = None) -> Decoder:
        check_strategy(self.pair, self.name, request.strategy, request.sampling)
        return GenAIDecoder(self.pipelines, request)

    def batch(self, strategy: Strategy) -> Batch:
        check_strategy(self.pair, self.name, strategy, Sampling())
        return GenAIBatch(self.pipelines, strategy)

    def pass_seconds(self, prompt: str, tokens: int) -> Generator[float]:
        """Yield the seconds of plain steps, or of prompt lookup rounds, which need no draft.

        GenAI pads short proposals, so each round passes exactly `lookahead + 1` tokens, a length fixed within a
        request.
        """
        limit = self.pair.target.context_length
        room = _MAX_TOKENS if limit is None else limit - len(self.pipelines.tokenizer.encode(prompt))
        strategy = Lookup(_NGRAM, tokens - 1) if tokens > 1 else Plain()
        request = Request(prompt, strategy, max_new_tokens=min(room, _MAX_TOKENS), ignore_eos=True)
        with closing(rounds_of(self.decoder(request))) as rounds:
            for step in islice(rounds, 1, None):  # the first is the prefill
                yield step.seconds

    def log_probabilities(
        self, request: Request, before: Sequence[int], tokens: Sequence[int], *, one_by_one: bool
    ) -> list[float] | None:
        """Return log-probabilities from an echoed prompt, or from plain decoding if it generates the same tokens.

        Echoing ignores the repetition penalty.
        """
        if request.sampling.repetition_penalty != 1:
            return None
        prompt, text = self.pipelines.tokenizer.encode_prompt(request), [*before, *tokens]
        new, echoed = (len(text), []) if one_by_one else (1, text)
        changes = {"logprobs": 1, "echo": not one_by_one, "ignore_eos": True, "max_new_tokens": new}
        handle = self.pipelines.start("plain", [*prompt, *echoed], request.plain, **changes)
        output = Output((), (), None)
        while output.finish_reason is None:
            self.pipelines.step("plain")
            ids, log_probabilities, finish_reason = self.pipelines.read(handle)
            output = Output(output.ids + ids, output.log_probabilities + log_probabilities, finish_reason)
        # a new token follows an echo
        positions = slice(-len(tokens), None) if one_by_one else slice(-len(tokens) - 1, -1)
        return list(output.log_probabilities[positions]) if output.ids[positions] == tuple(tokens) else None

    def close(self) -> None:
        self.pipelines.clear()


class GenAIDecoder(Decoder):
    def __init__(self, pipelines: Pipelines, request: Request) -> None:
        self._pipelines, self._request, self._kind = pipelines, request, kind_of(request.strategy)
        self._tracer: Tracer | None = None
        self._prompt: list[int] = []
        self._committed = 0
        if self._kind != "plain":  # sampling and heads cannot be replayed
            not_replayable = request.sampling.do_sample or pipelines.pair.head is not None
            self.trace_source = "counts only" if self._kind == "model" and not_replayable else "replayed"

    def rounds(self) -> Generator[Prefill | Round]:
        self._prompt = self._pipelines.tokenizer.encode_prompt(self._request)
        self.prompt_tokens = len(self._prompt)
        if self._kind == "model" and self._pipelines.pair.head is not None and len(self._prompt) < 2:
            raise PromptError("An EAGLE-3 head needs a prompt of at least two tokens; enter a longer one.")
        self._text = IncrementalText(self._pipelines.tokenizer.decode, self._prompt)
        self._handle = self._pipelines.start(self._kind, self._prompt, self._request)
        try:
            yield from self._prefill()
            while self.finish_reason is None:
                yield self._step()
        finally:
            if self.finish_reason is None:
                self._pipelines.cancel(self._kind, [self._handle])

    def _prefill(self) -> Generator[Prefill | Round]:
        seconds = 0.0
        for done in count(PREFILL_CHUNK, PREFILL_CHUNK):
            part = self._step()
            seconds += part.seconds
            if part.committed or self.finish_reason is not None:
                break
            yield Prefill(min(done, len(self._prompt)), len(self._prompt))
        yield part.model_copy(update={"seconds": seconds})

    def _step(self) -> Round:
        tokens_left = self._request.max_new_tokens - self._committed
        started = perf_counter()
        self._pipelines.step(self._kind)
        seconds = perf_counter() - started
        output, reported = self._pipelines.read(self._handle), reports_probabilities(self._request)
        self.finish_reason = output.finish_reason
        tokens = [
            Token(id=id_, text=self._text.push(id_), probability=math.exp(log_probability) if reported else None)
            for id_, log_probability in zip(output.ids, output.log_probabilities, strict=True)
        ]
        if self.finish_reason is not None and tokens:
            tokens[-1] = tokens[-1].model_copy(update={"text": tokens[-1].text + self._text.flush()})
        proposed: tuple[DraftToken, ...] | None = ()
        if self._committed:  # the first round is the prefill
            drafted = number_proposed(self._request.strategy, tokens_left, self.finish_reason)
            accepted = max(len(tokens) - 1, 0)
            proposed = None if drafted is None else counted_drafts(tokens, drafted, min(accepted, drafted))
        self._committed += len(tokens)
        return Round(committed=tuple(tokens), seconds=seconds, proposed=proposed)

    def with_proposals(self, rounds: Sequence[Round]) -> list[Round]:
        if self.trace_source != "replayed":
            return list(rounds)
        if self._tracer is None:
            self._tracer = Tracer(self._pipelines, self._prompt, self._request)
        ends = self.finish_reason == "stop"
        return [self._tracer.round(step, ended=ends and step is rounds[-1]) for step in rounds]


def number_proposed(strategy: Strategy, tokens_left: int, finish_reason: FinishReason | None) -> int | None:
    """Return how many tokens a round proposed with `tokens_left` to generate; None if unknown.

    Prompt lookup may find fewer than it may propose. A stop token may or may not have been proposed.
    """
    if isinstance(strategy, Plain):
        return 0
    if not isinstance(strategy, Constant) or finish_reason == "stop":
        return None
    return min(strategy.num_assistant_tokens, tokens_left - 1)


class GenAIBatch(Batch):
    receives_passes = True

    def __init__(self, pipelines: Pipelines, strategy: Strategy) -> None:
        self._pipelines = pipelines
        self._kind = kind_of(strategy)
        pipelines.get(self._kind)
        self._active: dict[int, _ActiveRequest] = {}

    def now(self) -> float:
        return perf_counter()

    def submit(self, number: int, request: Request) -> None:
        ids = self._pipelines.tokenizer.encode_prompt(request)
        self._active[number] = _ActiveRequest(self._pipelines.start(self._kind, ids, request), request)

    def receive(self) -> Sequence[Arrival]:
        self._pipelines.step(self._kind)
        at, arrivals = self.now(), []
        for number, request in list(self._active.items()):
            output = self._pipelines.read(request.handle)
            if output.ids or output.finish_reason is not None:
                rounds = request.rounds(output)
                arrivals.append(Arrival(number, at, len(output.ids), output.ids, rounds, output.finish_reason))
            if output.finish_reason is not None:
                del self._active[number]
        return arrivals

    def close(self) -> None:
        self._pipelines.cancel(self._kind, [request.handle for request in self._active.values()])
        self._active = {}


@dataclass
class _ActiveRequest:
    handle: "openvino_genai.GenerationHandle"
    request: Request
    committed: int = 0

    def rounds(self, output: Output) -> tuple[RoundCounts, ...]:
        tokens_left, prefill = self.request.max_new_tokens - self.committed, not self.committed
        self.committed += len(output.ids)
        proposed = number_proposed(self.request.strategy, tokens_left, output.finish_reason)
        return () if prefill else (RoundCounts(proposed, len(output.ids) - 1),)
