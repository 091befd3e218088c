"""Requests on one `openvino_genai` pipeline, stepped one round at a time, alone or in a batch.

Facts about openvino-genai 2026.4 that shape this module, each covered by a test:

- After a failed step, every later request on the pipeline fails too, so it is discarded and rebuilt when needed.
- A request that does not fit the KV cache raises nothing; its status becomes IGNORED.
- One step advances every request of a batch by one round, whatever its strategy, and prefills new ones
  (continuous batching).
- The pipeline drops cancelled requests in its next step.
"""

import math
from collections.abc import Generator, Sequence
from itertools import count
from time import perf_counter

import openvino_genai

from specdemo.engines.base import PREFILL_CHUNK, Arrival, Batch, Decoder, Prefilling, RoundCounts, counted_drafts
from specdemo.engines.genai.pipelines import Pipelines, as_tensor, check_fits, generation_config, kind_of, read
from specdemo.engines.genai.replay import Tracer
from specdemo.engines.text import IncrementalText
from specdemo.errors import PromptError
from specdemo.records import DraftToken, FinishReason, Request, Round, Token
from specdemo.strategies import Constant, Plain, Strategy

request_ids = count(1)


class GenAIDecoder(Decoder):
    def __init__(self, pipelines: Pipelines, request: Request) -> None:
        self._pipelines = pipelines
        self._request = request
        self._kind = kind_of(request.strategy)
        self._pipeline: openvino_genai.ContinuousBatchingPipeline | None = None
        self._handle: openvino_genai.GenerationHandle | None = None
        self._tracer: Tracer | None = None
        self._prompt: list[int] = []
        self._committed = 0
        if self._kind != "plain":  # sampling and heads cannot be replayed
            unseen = request.sampling.do_sample or pipelines.pair.head is not None
            self.trace_source = "counts only" if self._kind == "model" and unseen else "replayed"

    def rounds(self) -> Generator[Prefilling | Round]:
        self._prompt = self._pipelines.tokenizer.encode_prompt(self._request)
        self.prompt_tokens = len(self._prompt)
        if self._kind == "model" and self._pipelines.pair.head in ("eagle3", "mtp") and len(self._prompt) < 2:
            raise PromptError("Such a head needs a prompt of at least two tokens; enter a longer one.")
        self._text = IncrementalText(self._pipelines.tokenizer.decode, self._prompt)
        self._pipeline, prompt = self._pipelines.get(self._kind), self._pipelines.prompt(self._prompt)
        with self._pipelines.resetting(self._kind):
            config = generation_config(self._pipeline, self._request)
            self._handle = self._pipeline.add_request(next(request_ids), prompt, config)
        try:
            yield from self._prefill()
            while self.finish_reason is None:
                yield self._step()
        finally:
            if self.finish_reason is None:
                self._pipelines.cancel(self._kind, [self._handle])

    def _prefill(self) -> Generator[Prefilling | Round]:
        seconds = 0.0
        for done in count(PREFILL_CHUNK, PREFILL_CHUNK):
            part = self._step()
            seconds += part.seconds
            if part.committed or self.finish_reason is not None:
                break
            yield Prefilling(min(done, len(self._prompt)), len(self._prompt))
        yield part.model_copy(update={"seconds": seconds})

    def _step(self) -> Round:
        assert self._pipeline is not None
        assert self._handle is not None
        wanted = self._request.max_new_tokens - self._committed
        began = perf_counter()
        with self._pipelines.resetting(self._kind):
            self._pipeline.step()
        seconds = perf_counter() - began
        tokens = self._read()
        check_fits(self._handle, self._pipelines.pair.runtime.cache_size)
        if self.finish_reason is not None and tokens:
            tokens[-1] = tokens[-1].model_copy(update={"text": tokens[-1].text + self._text.flush()})
        first, self._committed = self._committed == 0, self._committed + len(tokens)
        return Round(
            committed=tuple(tokens), seconds=seconds, proposed=() if first else self._proposed(tokens, wanted)
        )

    def with_proposals(self, rounds: Sequence[Round]) -> list[Round]:
        if self.trace_source != "replayed":
            return list(rounds)
        if self._tracer is None:
            self._tracer = Tracer(self._pipelines, self._prompt, self._request)
        ends = self.finish_reason == "stop"
        return [self._tracer.round(step, ended=ends and step is rounds[-1]) for step in rounds]

    def draft_agreement(self) -> tuple[bool, ...] | None:
        return self._tracer.draft_agreement() if self._tracer is not None else None

    def _read(self) -> list[Token]:
        assert self._handle is not None
        output, reported = read(self._handle), self._request.reports_probabilities
        self.finish_reason = output.finish_reason
        return [
            Token(id=id_, text=self._text.push(id_), probability=math.exp(logarithm) if reported else None)
            for id_, logarithm in zip(output.ids, output.logarithms, strict=True)
        ]

    def _proposed(self, tokens: Sequence[Token], wanted: int) -> tuple[DraftToken, ...] | None:
        """Return a round's proposals before any replay."""
        proposed = number_proposed(self._request.strategy, wanted, self.finish_reason)
        return None if proposed is None else counted_drafts(tokens, proposed, min(max(len(tokens) - 1, 0), proposed))


def number_proposed(strategy: Strategy, wanted: int, finish_reason: FinishReason | None) -> int | None:
    """Return how many tokens a round proposed, of `wanted` left; None if unknown.

    Prompt lookup may find fewer; after an end-of-text token it is unknown whether the draft proposed it.
    """
    if isinstance(strategy, Plain):
        return 0
    if not isinstance(strategy, Constant) or finish_reason == "stop":
        return None
    return min(strategy.num_assistant_tokens, wanted - 1)


class GenAIBatch(Batch):
    in_passes = True

    def __init__(self, pipelines: Pipelines, strategy: Strategy) -> None:
        self._pipelines = pipelines
        self._kind = kind_of(strategy)
        self._pipeline = pipelines.get(self._kind, concurrent=True)
        self._running: dict[int, _Running] = {}

    def now(self) -> float:
        return perf_counter()

    def submit(self, number: int, request: Request) -> None:
        prompt = as_tensor(self._pipelines.tokenizer.encode_prompt(request))
        with self._pipelines.resetting(self._kind):
            config = generation_config(self._pipeline, request)
            handle = self._pipeline.add_request(next(request_ids), prompt, config)
        self._running[number] = _Running(handle, request)

    def receive(self) -> Sequence[Arrival]:
        with self._pipelines.resetting(self._kind):
            self._pipeline.step()
        at, arrived = self.now(), []
        for number, running in list(self._running.items()):
            output = read(running.handle)
            check_fits(running.handle, self._pipelines.pair.runtime.cache_size)
            if output.ids or output.finish_reason is not None:
                rounds = running.rounds(len(output.ids), output.finish_reason)
                arrived.append(Arrival(number, at, len(output.ids), output.ids, rounds, output.finish_reason))
            if output.finish_reason is not None:
                del self._running[number]
        return arrived

    def close(self) -> None:
        self._pipelines.cancel(self._kind, [running.handle for running in self._running.values()])
        self._running = {}


class _Running:
    def __init__(self, handle: "openvino_genai.GenerationHandle", request: Request) -> None:
        self.handle = handle
        self._strategy = request.strategy
        self._most = request.max_new_tokens
        self._committed = 0

    def rounds(self, tokens: int, finish_reason: FinishReason | None) -> tuple[RoundCounts, ...]:
        """Return the counts of the round that committed these tokens; none for the prefill."""
        wanted, first = self._most - self._committed, self._committed == 0
        self._committed += tokens
        return () if first else (RoundCounts(number_proposed(self._strategy, wanted, finish_reason), tokens - 1),)
