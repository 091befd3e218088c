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

from specdemo.engines.base import PREFILL_CHUNK, Arrival, Prefilling, RoundCounts
from specdemo.engines.genai.pipelines import Pipelines, as_tensor, check_fits, generation_config, kind_of, read
from specdemo.engines.genai.replay import Tracer
from specdemo.engines.text import IncrementalText
from specdemo.errors import OPENVINO_FAILURES, EngineError, PromptError
from specdemo.records import DraftToken, FinishReason, Request, Round, Run, Token, TraceSource, outcomes_from_counts
from specdemo.strategies import Constant, Plain, Strategy

request_ids = count(1)


class GenAIDecoder:
    """A `Decoder` on the pipeline for the request's strategy."""

    def __init__(self, pipelines: Pipelines, request: Request) -> None:
        self._pipelines = pipelines
        self._request = request
        self._kind = kind_of(request.strategy)
        self._pipeline: openvino_genai.ContinuousBatchingPipeline | None = None
        self._handle: openvino_genai.GenerationHandle | None = None
        self._tracer: Tracer | None = None
        self._prompt: list[int] = []
        self._committed = 0
        self.finish_reason: FinishReason | None = None

    @property
    def speculates(self) -> bool:
        return self._kind != "plain"

    @property
    def trace_source(self) -> TraceSource:
        """Source of proposals. Plain rounds count as measured; sampling and heads cannot be replayed."""
        if not self.speculates:
            return "measured"
        unseen = self._request.sampling.do_sample or self._pipelines.pair.head is not None
        return "counts only" if self._kind == "model" and unseen else "replayed"

    def rounds(self) -> Generator[Prefilling | Round]:
        """Tokenise, prefill (in chunks if the prompt is long), and decode."""
        self._prompt = self._pipelines.tokenizer.encode_prompt(self._request)
        if self._kind == "model" and self._pipelines.pair.head in ("eagle3", "mtp") and len(self._prompt) < 2:
            raise PromptError("Such a head needs a prompt of at least two tokens; enter a longer one.")
        self._text = IncrementalText(self._pipelines.tokenizer.decode, self._prompt)
        self._pipeline, prompt = self._pipelines.get(self._kind), self._pipelines.prompt(self._prompt)
        try:
            config = generation_config(self._pipeline, self._request)
            self._handle = self._pipeline.add_request(next(request_ids), prompt, config)
        except OPENVINO_FAILURES as error:
            raise self._failure(error) from error
        try:
            yield from self._prefill()
            while self.finish_reason is None:
                yield self._step()
        finally:
            self._free()

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
        try:
            self._pipeline.step()
        except OPENVINO_FAILURES as error:
            raise self._failure(error) from error
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
        """Return the rounds with their proposals, replayed where possible."""
        if self.trace_source != "replayed":
            return list(rounds)
        return [self._traced(step, ended=self.finish_reason == "stop" and step is rounds[-1]) for step in rounds]

    def finalized(self, run: Run) -> Run:
        """Return the run with the length of its prompt."""
        return run.model_copy(update={"prompt_tokens": len(self._prompt)})

    def update_strategy(self, strategy: Strategy) -> bool:
        """Return False: a request keeps the configuration it was added with."""
        return False

    def draft_agreement(self) -> tuple[bool, ...] | None:
        """Return whether the draft would have proposed each traced token."""
        return self._tracer.draft_agreement() if self._tracer is not None else None

    def _free(self) -> None:
        handle, self._handle = self._handle, None
        if handle is None or self._pipeline is None or self.finish_reason is not None:
            return
        handle.cancel()
        try:
            self._pipeline.step()  # the pipeline releases a cancelled request in its next step
        except RuntimeError:
            self._pipelines.discard(self._kind)

    def _read(self) -> list[Token]:
        assert self._handle is not None
        output, reported = read(self._handle), self._request.reports_probabilities
        self.finish_reason = output.finish_reason
        return [
            Token(id=id_, text=self._text.push(id_), probability=math.exp(logarithm) if reported else None)
            for id_, logarithm in zip(output.ids, output.logarithms, strict=True)
        ]

    def _proposed(self, tokens: Sequence[Token], wanted: int) -> tuple[DraftToken, ...] | None:
        """Return a round's proposals before any replay: with a constant lookahead, their number.

        After an end-of-text token it is unknown whether the draft proposed it, so the counts are unknown, too.
        """
        if not self.speculates:
            return ()
        if not isinstance(self._request.strategy, Constant) or self.finish_reason == "stop":
            return None
        return self._counts(min(self._request.strategy.num_assistant_tokens, wanted - 1), tokens)

    def _counts(self, proposed: int, tokens: Sequence[Token]) -> tuple[DraftToken, ...]:
        accepted = min(len(tokens) - 1, proposed)
        outcomes = outcomes_from_counts(proposed, accepted)
        accepted_drafts = [
            DraftToken(id=token.id, text=token.text, verdict=outcome)
            for token, outcome in zip(tokens[:accepted], outcomes, strict=False)
        ]
        return (*accepted_drafts, *(DraftToken(id=None, text="", verdict=outcome) for outcome in outcomes[accepted:]))

    def _traced(self, step: Round, *, ended: bool) -> Round:
        if self._tracer is None:
            self._tracer = Tracer(self._pipelines, self._prompt, self._request)
            return self._tracer.prefill(step)
        return self._tracer.round(step, ended=ended)

    def _failure(self, error: BaseException) -> EngineError:
        self._handle = None
        self._pipelines.discard(self._kind)
        return EngineError.of(error)


class GenAIBatch:
    """A `Batch` on the pipeline for a strategy."""

    in_passes = True

    def __init__(self, pipelines: Pipelines, strategy: Strategy) -> None:
        self._pipelines = pipelines
        self._kind = kind_of(strategy)
        self._pipeline = pipelines.get(self._kind)
        self._running: dict[int, _Running] = {}

    def now(self) -> float:
        return perf_counter()

    def submit(self, number: int, request: Request) -> None:
        """Tokenise the prompt and add the request; the next step prefills it."""
        prompt = as_tensor(self._pipelines.tokenizer.encode_prompt(request))
        try:
            config = generation_config(self._pipeline, request)
            handle = self._pipeline.add_request(next(request_ids), prompt, config)
        except OPENVINO_FAILURES as error:
            raise self._failure(error) from error
        self._running[number] = _Running(handle, request)

    def receive(self) -> Sequence[Arrival]:
        """Run one step: a round of every request in flight, and the prefill of new ones."""
        try:
            self._pipeline.step()
        except OPENVINO_FAILURES as error:
            raise self._failure(error) from error
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
        left, self._running = self._running, {}
        for running in left.values():
            running.handle.cancel()
        if not left:
            return
        try:
            self._pipeline.step()
        except RuntimeError:
            self._pipelines.discard(self._kind)

    def _failure(self, error: BaseException) -> EngineError:
        self._running = {}
        self._pipelines.discard(self._kind)
        return EngineError.of(error)


class _Running:
    """A request in flight."""

    def __init__(self, handle: "openvino_genai.GenerationHandle", request: Request) -> None:
        self.handle = handle
        self._strategy = request.strategy
        self._most = request.max_new_tokens
        self._committed = 0

    def rounds(self, tokens: int, finish_reason: FinishReason | None) -> tuple[RoundCounts, ...]:
        """Return the counts of the round that committed these tokens; none for the prefill."""
        wanted, first = self._most - self._committed, self._committed == 0
        self._committed += tokens
        if first:
            return ()
        if isinstance(self._strategy, Plain):
            return (RoundCounts(0, 0),)
        proposed = (
            min(self._strategy.num_assistant_tokens, wanted - 1) if isinstance(self._strategy, Constant) else None
        )
        # prompt lookup may find fewer; after an end-of-text token it is unknown whether the draft proposed it
        return (RoundCounts(None if finish_reason == "stop" else proposed, tokens - 1),)
