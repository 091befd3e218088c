"""Decodes a pair in specdemo's own loop. Both sides share one compiled target; each request has its own caches."""

import math
from bisect import bisect_left
from collections.abc import Generator, Sequence
from functools import partial
from time import perf_counter
from typing import Literal

import numpy as np

from specdemo.capabilities import ENGINES
from specdemo.decoding.indexes import CopyIndex, TextIndex, index_of
from specdemo.decoding.lookahead import CombinedPolicy, Estimates, LookaheadPolicy, policy_for
from specdemo.decoding.round import Drafter, ModelSequence
from specdemo.decoding.sampling import Uniform, distribution
from specdemo.engines.base import THOROUGH, Decoder, Engine, Thoroughness
from specdemo.engines.language_model import (
    COMPILE_POOL,
    HeadModel,
    LanguageModel,
    ReducedVocabulary,
    Tokens,
    Transformation,
    add_states_output,
)
from specdemo.engines.sequences import CachedSequence, Layout
from specdemo.engines.text import Tokenizer
from specdemo.engines.traced.decoder import OpenDrafter, TracedDecoder
from specdemo.engines.traced.drafters import (
    LONGEST_PASS,
    CombinedDrafter,
    ModelDrafter,
    TextDrafter,
    TranslatingDrafter,
)
from specdemo.errors import PairError
from specdemo.models.catalogue import pair_settings
from specdemo.models.checks import check_engine, check_strategy
from specdemo.models.converted import folder_of, traced_runtime
from specdemo.models.devices import check_devices, describe_environment, draft_device, properties
from specdemo.records import Costs, ModelPair, Request, Side
from specdemo.settings import RuntimeSettings
from specdemo.strategies import Plain, Strategy

_Role = Literal["plain", "speculative", "draft"]  # the sides share the target, but not its cache
_CACHED_TEXTS = 2  # of the warm-up and of the chat
# Activations of a draft that share a scale. Steps take a tenth less time than with 32, at the same agreement; larger
# groups do not divide the rows of every model.
_DRAFT_GROUP = 64
_MIN_PROBABILITY = 1e-12  # keeps logarithms finite
_MAX_FIXED_LENGTH = 5  # tokens of a pass; longer rounds rarely pay, and each compiled length takes memory
_LENGTHS = (1, 2, 4, 8, LONGEST_PASS)
_EXACT_LAYOUTS: tuple[Layout, ...] = ("empty_sequence", "second_token")  # may repeat bits; the cheaper one first


class TracedEngine(Engine):
    name = "traced"

    def __init__(self, pair: ModelPair, side: Side | None = None, *, thoroughness: Thoroughness = THOROUGH) -> None:
        check_engine(pair, self.name)
        self.pair = pair
        runtime = traced_runtime(pair)
        self.thoroughness = thoroughness
        check_devices(runtime)
        tokenizers = COMPILE_POOL.submit(_tokenizers, pair)
        # most requests use it
        default = pair_settings(pair, engine=self.name).strategy if thoroughness.fixed_lengths else None
        target, draft = _load_models(pair, runtime, default)
        if target.layout is None and pair.runtime.dynamic_quantization == "auto":  # its passes do not repeat bits
            del target, draft  # free their memory first
            runtime = pair.runtime  # without quantization
            target, draft = _load_models(pair, runtime, default)
        self._target: LanguageModel | None = target
        self._draft, self._draft_tokens, self._head = draft
        self._tokenizer, self._draft_tokenizer = tokenizers.result()
        self._estimates = Estimates()  # of the automatic lookahead
        self._sequences: dict[_Role, list[CachedSequence]] = {}
        if self._head is not None and np.array_equal(self._head.tokens, np.arange(self._target.vocabulary)):
            self._draft_tokens = None  # the same as the target's
        elif self._draft is not None and self._head is None:
            self.pair = pair.model_copy(update={"translated": self._draft_tokenizer is not None})
        if self._draft is not None:  # it chooses alike in passes over one token and over several
            self._draft.use_layout(self._target.layout)
        self.environment = describe_environment(pair, runtime)

    def decoder(self, request: Request, costs: Costs | None = None) -> Decoder:
        check_strategy(self.pair, self.name, request.strategy, request.sampling)
        plain = isinstance(request.strategy, Plain)
        drafter, policy = (None, None) if plain else self._drafter(request, costs)
        if self.thoroughness.fixed_lengths and request.kv_cache:
            self._model("plain").compile_lengths(_fixed_lengths(request.strategy))
            if self._draft is not None and request.strategy.drafter.model:
                self._draft.compile_lengths(_draft_lengths(self.pair, request.strategy))
        return TracedDecoder(
            request,
            self._tokenizer,
            partial(self._sequence, "plain" if plain else "speculative", kv_cache=request.kv_cache),
            drafter,
            self._sequences.clear,
            None if plain or request.strategy.name not in ENGINES[self.name].live else policy,
        )

    def pass_seconds(self, prompt: str, tokens: int) -> Generator[float]:
        if self.thoroughness.fixed_lengths:
            long = (length for length in _LENGTHS if _MAX_FIXED_LENGTH < length <= tokens)
            self._model("plain").compile_lengths([*range(1, _MAX_FIXED_LENGTH + 1), *long])
        text = self._tokenizer.encode(prompt)
        sequence = self._model("plain").sequence(len(text) + tokens)
        sequence.logits(text)
        longer = [*text, *(text * tokens)[:tokens]]
        while True:
            start = perf_counter()
            sequence.logits(longer, tokens)
            yield perf_counter() - start

    def log_probabilities(
        self, request: Request, before: Sequence[int], tokens: Sequence[int], *, one_by_one: bool
    ) -> list[float] | None:
        start = [*self._tokenizer.encode_prompt(request), *before]
        text, ends = [*start, *tokens], range(len(start), len(start) + len(tokens))
        target = self._model("plain").sequence(len(text), kv_cache=request.kv_cache)
        rows = (target.logits(text[:end])[0] for end in ends) if one_by_one else target.logits(text[:-1], len(tokens))
        return [
            math.log(max(float(distribution(row, request.sampling, text[:end])[text[end]]), _MIN_PROBABILITY))
            for row, end in zip(rows, ends, strict=True)
        ]

    def close(self) -> None:
        self._target = self._draft = self._head = None
        self._sequences.clear()

    def _model(self, role: _Role) -> LanguageModel:
        model = self._draft if role == "draft" else self._target
        assert model is not None, "a closed engine decodes nothing"
        return model

    def _sequence(self, role: _Role, text: Sequence[int], capacity: int, *, kv_cache: bool) -> ModelSequence:
        """Return a new sequence or, with prefix caching, the one that shares the longest prefix with this text."""
        model = self._model(role)
        if not (self.pair.runtime.enable_prefix_caching and kv_cache):
            return model.sequence(capacity, kv_cache=kv_cache)
        sequences = self._sequences.setdefault(role, [])
        if len(sequences) < _CACHED_TEXTS:
            sequences.append(model.sequence(capacity))
            return sequences[-1]
        return max(sequences, key=lambda sequence: sequence.common_prefix(text))

    def _drafter(self, request: Request, costs: Costs | None) -> tuple[OpenDrafter, LookaheadPolicy | TextIndex]:
        vocabulary, strategy = self._model("speculative").vocabulary, request.strategy
        if not strategy.drafter.model:
            index = index_of(strategy)
            return (lambda *_: TextDrafter(index, vocabulary)), index
        context = self.pair.draft.context_length if self.pair.draft is not None else None
        # when sampling, every run starts from the same estimates, so that a seed reproduces it
        learns = strategy.needs_costs and not request.sampling.do_sample
        if costs is not None and self._model("speculative").compiles_lengths:
            costs = _padded(costs, _fixed_lengths(strategy))
        estimates = self._estimates if learns else Estimates()
        policy = policy_for(strategy, costs, estimates)

        def open_drafter(text: Sequence[int], capacity: int, random: Uniform, target: ModelSequence) -> Drafter:
            sequence = (
                self._head.sequence(target, capacity, kv_cache=request.kv_cache)
                if self._head is not None
                else self._sequence("draft", text, capacity, kv_cache=request.kv_cache)
            )
            drafter = ModelDrafter(
                sequence, vocabulary, context, policy, request.sampling, random, self._draft_tokens
            )
            if isinstance(policy, CombinedPolicy):
                return CombinedDrafter(drafter, CopyIndex(estimates.copies), policy, vocabulary)
            if self._draft_tokenizer is None:
                return drafter
            return TranslatingDrafter(drafter, self._draft_tokenizer, self._tokenizer)

        return open_drafter, policy


def _fixed_lengths(strategy: Strategy) -> Sequence[int]:
    """Return the pass lengths to compile for a strategy's rounds, in tokens; a pass between two of them is padded."""
    if isinstance(strategy, Plain):
        return (1,)
    if strategy.fixed_lookahead and strategy.drafter.model:
        return (1, strategy.fixed_lookahead + 1)
    most = LONGEST_PASS if strategy.drafter.model and strategy.drafter.copies else _MAX_FIXED_LENGTH
    cap = strategy.fixed_lookahead or getattr(strategy, "max_assistant_tokens", None) or most
    longest = min(cap + 1, most)
    # a pass over three tokens is padded to four, which costs 2 % more; another length costs two seconds of a core
    return sorted(length for length in {*_LENGTHS, longest} if length <= longest)


def _padded(costs: Costs, lengths: Sequence[int]) -> Costs:
    """Return the costs of rounds whose passes are padded to compiled lengths; longer ones are not compiled."""
    verify, passes = costs.verify[: max(lengths)], [length - 1 for length in lengths]
    padded = [min(passes[bisect_left(passes, tokens)], len(verify) - 1) for tokens in range(len(verify))]
    return costs.model_copy(
        update={"verify": tuple(verify[index] for index in padded), "drafting": costs.drafting[: len(verify)]}
    )


def _draft_lengths(pair: ModelPair, strategy: Strategy) -> Sequence[int]:
    """Return pass lengths of a draft, which reads one token or two and what was copied; a head reads every token."""
    lengths = _fixed_lengths(strategy)
    if strategy.drafter.copies:
        return [*range(1, _MAX_FIXED_LENGTH + 1), *lengths]
    return range(1, max(lengths) + 1) if pair.head == "eagle3" else (1, 2)


def _layouts(pair: ModelPair) -> tuple[Layout, ...]:
    """Return the layouts to try; none without compressed weights, since activations are quantized only with them."""
    return () if pair.target.weights.lower().startswith(("f", "bf")) else _EXACT_LAYOUTS


_Draft = tuple[LanguageModel | None, Tokens | None, HeadModel | None]


def _load_models(pair: ModelPair, runtime: RuntimeSettings, default: Strategy | None) -> tuple[LanguageModel, _Draft]:
    lengths = _fixed_lengths(default) if default is not None else ()
    draft_lengths = _draft_lengths(pair, default) if default is not None else ()
    draft = COMPILE_POOL.submit(_load_draft, pair, runtime, draft_lengths)
    folder, options = folder_of(pair.target), properties(runtime, runtime.device)
    adapt: Transformation = add_states_output if pair.head == "eagle3" else lambda model: None
    target = LanguageModel(folder, runtime.device, options, layouts=_layouts(pair), adapt=adapt, lengths=lengths)
    return target, draft.result()


def _load_draft(pair: ModelPair, runtime: RuntimeSettings, lengths: Sequence[int]) -> _Draft:
    if pair.draft is None:
        return None, None, None
    folder, device = folder_of(pair.draft), draft_device(runtime)
    # a draft quantizes activations where its target does: its steps take a fifth less time
    settings = runtime if device == runtime.device else pair.runtime
    options = properties(settings, device, group=_DRAFT_GROUP)
    layouts = _layouts(pair)[:1]  # the target's most likely one
    if pair.head == "eagle3":
        head = HeadModel(folder, device, options, layouts, lengths)
        return head.model, head.tokens, head
    reduced = ReducedVocabulary()
    model = LanguageModel(folder, device, options, layouts=layouts, adapt=reduced, lengths=lengths)
    return model, reduced.tokens, None


def _tokenizers(pair: ModelPair) -> tuple[Tokenizer, Tokenizer | None]:
    target, draft = Tokenizer(pair.target), pair.draft
    if draft is None or pair.head == "eagle3":
        return target, None
    tokenizer = Tokenizer(draft)
    try:
        target.check_fits(tokenizer)
    except PairError:
        return target, tokenizer
    return target, None
