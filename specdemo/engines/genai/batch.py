"""Several requests at once in one `openvino_genai` pipeline: continuous batching, one step at a time.

Facts about openvino-genai 2026.4 that shape this module, each covered by a test:

- One step advances every request by one round, whatever its way; a new one is prefilled in the same step.
- The pipeline drops cancelled requests in its next step.
"""

from collections.abc import Sequence
from itertools import count
from time import perf_counter

import openvino_genai

from specdemo.engines.batch import Arrival, RoundCounts
from specdemo.engines.genai.pipelines import Pipelines, as_tensor, check_fits, generation_config, kind_of, read
from specdemo.errors import EngineError
from specdemo.records import FinishReason, Request
from specdemo.strategies import Constant, Plain, Strategy

_request_ids = count(1)


class GenAIBatch:
    """A `Batch` on the pipeline that decodes this way."""

    in_passes = True

    def __init__(self, pipelines: Pipelines, strategy: Strategy) -> None:
        self._pipelines = pipelines
        self._kind = kind_of(strategy)
        self._pipeline = pipelines.get(self._kind)
        self._flying: dict[int, _Flight] = {}

    def now(self) -> float:
        """Seconds of this process's clock."""
        return perf_counter()

    def submit(self, number: int, request: Request) -> None:
        """Tokenise the prompt and add the request; the next step prefills it."""
        prompt = as_tensor(self._pipelines.tokenizer.encode_prompt(request))
        try:
            config = generation_config(self._pipeline, request)
            handle = self._pipeline.add_request(next(_request_ids), prompt, config)
        except RuntimeError as error:
            raise self._failure() from error
        self._flying[number] = _Flight(handle, request)

    def receive(self) -> Sequence[Arrival]:
        """One step: a round of every request in flight, and the prefill of new ones."""
        try:
            self._pipeline.step()
        except RuntimeError as error:
            raise self._failure() from error
        at, arrived = self.now(), []
        for number, flight in list(self._flying.items()):
            output = read(flight.handle)
            check_fits(flight.handle, self._pipelines.pair.runtime.cache_size)
            if output.ids or output.finish_reason is not None:
                rounds = flight.rounds(len(output.ids), output.finish_reason)
                arrived.append(Arrival(number, at, len(output.ids), output.ids, rounds, output.finish_reason))
            if output.finish_reason is not None:
                del self._flying[number]
        return arrived

    def cache_bytes(self) -> int | None:
        """Bytes of the target's cache blocks that requests hold."""
        metrics = self._pipeline.get_metrics()
        return int(metrics.cache_usage / 100 * metrics.cache_size_in_bytes)

    def close(self) -> None:
        """Cancel what is in flight."""
        flying, self._flying = self._flying, {}
        for flight in flying.values():
            flight.handle.cancel()
        if not flying:
            return
        try:
            self._pipeline.step()
        except RuntimeError:
            self._pipelines.discard(self._kind)

    def _failure(self) -> EngineError:
        self._flying = {}
        self._pipelines.discard(self._kind)
        return EngineError()


class _Flight:
    """A request in flight."""

    def __init__(self, handle: "openvino_genai.GenerationHandle", request: Request) -> None:
        self.handle = handle
        self._strategy = request.strategy
        self._most = request.max_new_tokens
        self._committed = 0

    def rounds(self, tokens: int, finish_reason: FinishReason | None) -> tuple[RoundCounts, ...]:
        """The round that committed so many tokens; none for the prefill, which commits the first."""
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
