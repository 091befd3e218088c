"""A pair decoded by our own loop. One compiled target serves both sides; each request has its own caches."""

import json
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from functools import partial
from hashlib import sha256
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter
from typing import Literal

from specdemo.decoding.auto import AutoPolicy, Experience
from specdemo.decoding.indexes import Memory, SuffixIndex, index_of
from specdemo.decoding.lookahead import policy_for
from specdemo.decoding.verification import Uniform
from specdemo.engines.base import THOROUGH, Decoder, Thoroughness, rounds_of
from specdemo.engines.language_model import (
    Adapt,
    HeadModel,
    LanguageModel,
    ModelSequence,
    log_probabilities,
    show_states,
)
from specdemo.engines.text import Tokenizer
from specdemo.engines.traced.decoder import Follow, OpenDrafter, TracedDecoder
from specdemo.engines.traced.drafters import ModelDrafter, Proposer, SourcesDrafter, TextDrafter, TranslatingDrafter
from specdemo.errors import PairError, SpecdemoError
from specdemo.models.checks import check_engine, check_request
from specdemo.models.converted import folder_of, has_int8_weights, traced_runtime
from specdemo.models.devices import (
    check_devices,
    describe_environment,
    draft_device,
    draft_runtime,
    machine_name,
    properties,
    repeats_bits,
)
from specdemo.models.places import own_cache, writable
from specdemo.records import SIDES, Costs, Counters, DraftRound, Model, ModelPair, Request
from specdemo.settings import RuntimeSettings
from specdemo.strategies import Constant, Plain, Strategy

_Role = Literal["plain", "speculative", "draft"]
"""Owner of a cache: both sides of a race share the target, each with its own text."""

_KEPT = 2  # texts whose caches are kept: the warm-up's and the chat's

_DRAFTED_TOKENS = 64  # while draft steps are timed


class Experiences:
    """Stored `Experience` of one pair, per strategy."""

    def __init__(self, pair: ModelPair) -> None:
        models = [(model.name, model.weights, model.weight_bytes) for model in (pair.target, pair.draft) if model]
        self._pair = [models, pair.runtime.model_dump(), machine_name()]
        self._latest: dict[str, Experience] = {}

    def of(self, strategy: Strategy) -> Experience | None:
        """Return the experience of earlier requests with this strategy; None before the first."""
        latest = self._latest.get(strategy.name)
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):  # missing, or of another version
            values = latest.to_dict() if latest is not None else json.loads(self._file(strategy.name).read_bytes())
            return Experience.from_dict(values)
        return None

    def keep(self, strategy: Strategy, experience: Experience) -> None:
        """Register the experience a new request will update; write that of earlier ones."""
        self.write()
        self._latest[strategy.name] = experience

    def write(self) -> None:
        """Write everything, if the cache is writable."""
        for name, experience in self._latest.items():
            path = self._file(name)
            with suppress(OSError, SpecdemoError):
                writable(path.parent, "What the automatic lookahead learnt")
                path.write_text(json.dumps(experience.to_dict()), encoding="utf-8")

    def _file(self, name: str) -> Path:
        key = sha256(json.dumps([name, *self._pair]).encode()).hexdigest()[:32]
        return own_cache() / "experience" / f"{key}.json"


class TracedEngine:
    """A pair loaded in our own loop."""

    remote = False
    sides = SIDES

    def __init__(self, pair: ModelPair, *, thoroughness: Thoroughness = THOROUGH) -> None:
        """Load target and draft. Pairs with different tokenizers are supported in greedy decoding.

        Raises:
            PairError: the draft is an EAGLE-3 head that does not fit the target.
            DeviceError: this machine has no such device, or it cannot be used.
            LoadError: OpenVINO cannot load a model.
        """
        check_engine(pair, "traced")
        self.pair = pair
        runtime = traced_runtime(pair)
        self.thoroughness = thoroughness
        check_devices(runtime)
        self._tokenizer = Tokenizer(pair.target)
        states = show_states if pair.eagle3 else lambda model: None
        per_token = has_int8_weights(pair.target) and repeats_bits(runtime)
        self._target: LanguageModel | None = _load(pair.target, runtime, runtime.device, states, per_token=per_token)
        self._draft: LanguageModel | None = None
        self._head: HeadModel | None = None
        self._memory = Memory()
        self._experience = Experiences(pair)
        self._kept: dict[_Role, list[ModelSequence]] = {}
        self._draft_tokenizer: Tokenizer | None = None
        if pair.draft is not None and pair.eagle3:
            folder, device = folder_of(pair.draft), draft_device(pair.runtime)
            options = properties(draft_runtime(pair.runtime), device)
            self._head = HeadModel(folder, device, options, self._target.vocabulary)
        elif pair.draft is not None:
            self._draft = _load(pair.draft, draft_runtime(pair.runtime), draft_device(pair.runtime))
            self._draft_tokenizer = _own_tokenizer(self._tokenizer, pair.draft)
            self.pair = pair.model_copy(update={"translated": self._draft_tokenizer is not None})
        self.environment = describe_environment(pair, runtime)

    def decoder(self, request: Request, costs: Costs | None = None) -> Decoder:
        """Return a decoder for the request.

        Raises:
            PairError, SettingsError: the pair cannot be decoded with the request's strategy, or the automatic
            lookahead
                lacks step costs.
        """
        check_request(self.pair, "traced", request)
        plain = isinstance(request.strategy, Plain)
        drafter, follow = (None, _never) if plain else self._drafter(request, costs)
        return TracedDecoder(
            request,
            self._tokenizer,
            partial(self._sequence, "plain" if plain else "speculative", kv_cache=request.kv_cache),
            drafter,
            None if plain else costs,
            self._kept.clear,
            follow,
        )

    def pass_seconds(self, prompt: str, *tokens: int) -> Generator[float]:
        """Yield the seconds of target passes over this many tokens, each after the same text.

        Where passes cannot be padded, the shape-change cost has no use, so several lengths yield nothing.
        """
        if len(tokens) > 1 and not self._model("plain").paged:
            return
        text = self._tokenizer.encode(prompt)
        sequence = self._model("plain").sequence(len(text) + max(tokens))
        sequence.logits(text)
        for count in cycle(tokens):
            longer = [*text, *(text * count)[:count]]
            began = perf_counter()
            sequence.logits(longer, count)
            yield perf_counter() - began

    def log_probabilities(
        self, request: Request, before: Sequence[int], tokens: Sequence[int], *, apart: bool
    ) -> list[float] | None:
        """Return log-probabilities from the target's logits, with the request's repetition penalty."""
        start = [*self._tokenizer.encode_prompt(request), *before]
        sequence = self._model("plain").sequence(len(start) + len(tokens), kv_cache=request.kv_cache)
        return log_probabilities(sequence, start, tokens, request.sampling, apart=apart)

    def count_tokens(self, text: str) -> int:
        return len(self._tokenizer.encode(text))

    def draft_rounds(self, prompt: str, lookahead: int) -> list[DraftRound]:
        """Return measured rounds with this lookahead; empty without a draft or with a translated one."""
        if self.pair.draft is None or self.pair.translated:  # a translated proposal is not one step
            return []
        request = Request(prompt, Constant(lookahead), max_new_tokens=_DRAFTED_TOKENS, ignore_eos=True)
        with closing(rounds_of(self.decoder(request))) as rounds:
            return [
                DraftRound(
                    seconds=step.draft_seconds,
                    probabilities=tuple(token.draft_probability or 0 for token in step.proposed),
                    accepted=len(step.committed) - 1,
                )
                for step in islice(rounds, 1, None)
                if step.draft_seconds is not None and step.proposed and len(step.proposed) == lookahead
            ]

    def counters(self, request: Request, wrote: Sequence[int], *, reload: bool) -> Counters | None:
        """Return None: this engine records every proposal itself."""
        return None

    def close(self) -> None:
        self._experience.write()
        self._target = self._draft = self._head = None
        self._kept.clear()

    def _model(self, role: _Role) -> LanguageModel:
        model = self._draft if role == "draft" else self._target
        assert model is not None, "a closed engine decodes nothing"
        return model

    def _sequence(self, role: _Role, text: Sequence[int], capacity: int, *, kv_cache: bool) -> ModelSequence:
        """Return a sequence for this text; with prefix caching, the kept one that shares most of it."""
        model = self._model(role)
        if not (self.pair.runtime.enable_prefix_caching and kv_cache):
            return model.sequence(capacity, kv_cache=kv_cache)
        kept = self._kept.setdefault(role, [])
        if len(kept) < _KEPT:
            kept.append(model.sequence(capacity))
            return kept[-1]
        return max(kept, key=lambda sequence: sequence.shared(text))

    def _drafter(self, request: Request, costs: Costs | None) -> tuple[OpenDrafter, Follow]:
        """Return a function that opens the drafter for the request's strategy, and one that updates the strategy."""
        vocabulary, strategy = self._model("speculative").vocabulary, request.strategy
        if not strategy.drafter.model:
            index = index_of(strategy)

            def open_index(text: Sequence[int], capacity: int, random: Uniform, target: ModelSequence) -> Proposer:
                if isinstance(index, SuffixIndex) and index.remembers:
                    index.earlier = self._memory.open(text)
                return TextDrafter(index, vocabulary)

            return open_index, index.update_strategy
        context = self.pair.draft.context_length if self.pair.draft is not None else None
        # when sampling, a seed reproduces a run only if every run starts from the same state
        learns = strategy.needs_costs and not request.sampling.do_sample
        experience = self._experience.of(strategy) if learns else None
        policy = policy_for(strategy, costs, experience)  # raises before anything is started

        def open_drafter(text: Sequence[int], capacity: int, random: Uniform, target: ModelSequence) -> Proposer:
            if learns and isinstance(policy, AutoPolicy):  # not when created: a race's warm-up is created later
                self._experience.keep(strategy, policy.experience)
            if self._head is not None:
                head = self._head.sequence(target, capacity, kv_cache=request.kv_cache)
                return ModelDrafter(head, vocabulary, context, policy, request.sampling, random)
            sequence = self._sequence("draft", text, capacity, kv_cache=request.kv_cache)
            singly = self._model("draft").feeds_singly
            drafter = ModelDrafter(sequence, vocabulary, context, policy, request.sampling, random, singly)
            if isinstance(policy, AutoPolicy) and len(strategy.drafter.sources) > 1:
                return SourcesDrafter(drafter, policy, index_of(strategy), vocabulary)
            if self._draft_tokenizer is None:
                return drafter
            return TranslatingDrafter(drafter, self._draft_tokenizer, self._tokenizer)

        return open_drafter, policy.update_strategy


def _never(strategy: Strategy) -> bool:
    return False


def _load(
    model: Model,
    runtime: RuntimeSettings,
    device: str,
    adapt: Adapt = lambda model: None,
    *,
    per_token: bool = False,
) -> LanguageModel:
    return LanguageModel(folder_of(model), device, properties(runtime, device), adapt=adapt, per_token=per_token)


def _own_tokenizer(target: Tokenizer, draft: Model) -> Tokenizer | None:
    """Return the draft's tokenizer, or None if the target's serves both."""
    tokenizer = Tokenizer(draft)
    try:
        target.check_fits(tokenizer)
    except PairError:
        if not draft.detokenizer:
            raise
        return tokenizer
    return None
