"""A pair decoded by `openvino_genai`.

Decoding is bound by reading weights from memory. A target pass over several tokens therefore costs little more than
one over a single token, which is why speculation can pay off.
"""

from collections.abc import Generator, Sequence
from contextlib import closing
from itertools import islice

from specdemo.engines.base import THOROUGH, Batch, Decoder, Engine, Thoroughness, rounds_of
from specdemo.engines.genai.decoder import GenAIBatch, GenAIDecoder, request_ids
from specdemo.engines.genai.pipelines import Output, Pipelines, as_tensor, check_fits, generation_config, read
from specdemo.models.checks import check_concurrent, check_strategy
from specdemo.models.devices import describe_environment
from specdemo.records import Costs, DraftRound, ModelPair, Request
from specdemo.settings import Sampling
from specdemo.strategies import Constant, Lookup, Plain, Strategy

_MOST_TOKENS = 200  # per series of passes: enough for eleven passes over seventeen tokens
_DRAFTED_TOKENS = 64  # while draft steps are timed
_NGRAM = 3


class GenAIEngine(Engine):
    name = "genai"

    def __init__(self, pair: ModelPair, *, lazy: bool = False, thoroughness: Thoroughness = THOROUGH) -> None:
        self.pair = pair
        self.thoroughness = thoroughness
        self.pipelines = Pipelines(pair, lazy=lazy)
        self.environment = describe_environment(pair)

    def decoder(self, request: Request, costs: Costs | None = None) -> Decoder:
        check_strategy(self.pair, "genai", request.strategy, request.sampling)
        return GenAIDecoder(self.pipelines, request)

    def batch(self, strategy: Strategy) -> Batch:
        check_concurrent(self.pair, "genai", strategy, Sampling())
        return GenAIBatch(self.pipelines, strategy)

    def pass_seconds(self, prompt: str, tokens: int) -> Generator[float]:
        """Yield the seconds of plain steps, or of prompt lookup rounds.

        Prompt lookup needs no draft, and GenAI pads short proposals, so each round passes exactly `lookahead + 1`
        tokens through the target. The length is fixed within a request. A target in parts has no prompt lookup.
        """
        if self.pair.target.in_parts:
            return
        limit = self.pair.target.context_length
        room = _MOST_TOKENS if limit is None else limit - len(self.pipelines.tokenizer.encode(prompt))
        strategy = Lookup(_NGRAM, tokens - 1) if tokens > 1 else Plain()
        request = Request(prompt, strategy, max_new_tokens=min(room, _MOST_TOKENS), ignore_eos=True)
        with closing(rounds_of(self.decoder(request))) as rounds:
            for step in islice(rounds, 1, None):  # the first is the prefill
                yield step.seconds

    def log_probabilities(
        self, request: Request, before: Sequence[int], tokens: Sequence[int], *, one_by_one: bool
    ) -> list[float] | None:
        """Return the log-probabilities of an echoed prompt, or of plain decoding if it generates the same tokens.

        An echo knows no repetition penalty, and a target in parts takes text, which ids alone do not determine.
        """
        if self.pair.target.in_parts or request.sampling.repetition_penalty != 1:
            return None
        pipeline = self.pipelines.get("plain")
        config = generation_config(pipeline, request.plain)
        ids, text = self.pipelines.tokenizer.encode_prompt(request), [*before, *tokens]
        config.logprobs, config.echo, config.ignore_eos = 1, not one_by_one, True
        config.max_new_tokens = len(text) if one_by_one else 1
        handle = pipeline.add_request(next(request_ids), as_tensor(ids if one_by_one else [*ids, *text]), config)
        output = Output((), (), None)
        while output.finish_reason is None:
            with self.pipelines.resetting("plain"):
                pipeline.step()
            more = read(handle)
            output = Output(output.ids + more.ids, output.logarithms + more.logarithms, more.finish_reason)
            check_fits(handle, self.pair.runtime.cache_size)
        judged = slice(-len(tokens), None) if one_by_one else slice(-len(tokens) - 1, -1)  # an echo ends anew
        return list(output.logarithms[judged]) if output.ids[judged] == tuple(tokens) else None

    def count_tokens(self, text: str) -> int:
        return len(self.pipelines.tokenizer.encode(text))

    def draft_rounds(self, prompt: str, lookahead: int) -> list[DraftRound]:
        """Return rounds timed by the counters of `generate()`, without outcomes."""
        if self.pair.draft is None:
            return []
        request = Request(prompt, Constant(lookahead), max_new_tokens=_DRAFTED_TOKENS, ignore_eos=True)
        counters = self.pipelines.generate("model", request).extended_perf_metrics
        microseconds = list(counters.draft_model_metrics.raw_metrics.m_durations)[1:]  # the first is the prefill
        steps = 1 if self.pair.head == "dflash" else lookahead  # one pass for the whole round
        # the first round is left out: the prefill is a pipeline's first entry at first, and its second one later
        rounds = (microseconds[i : i + steps] for i in range(steps, len(microseconds) - steps + 1, steps))
        return [DraftRound(seconds=sum(batch) / 1e6) for batch in rounds]

    def close(self) -> None:
        self.pipelines.clear()
