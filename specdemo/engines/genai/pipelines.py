"""A pair's continuous-batching pipelines in `openvino_genai`, each built when first needed.

A speculative pipeline cannot decode plainly, so plain decoding, draft model and prompt lookup need one each. Only the
last speculative one stays loaded, so at most two copies of the target are in memory.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, Literal, NamedTuple

import numpy as np
import openvino
import openvino_genai

from specdemo.engines import formats
from specdemo.engines.base import PREFILL_CHUNK
from specdemo.engines.language_model import LanguageModel
from specdemo.engines.text import Tokenizer
from specdemo.errors import OPENVINO_FAILURES, EngineError, LoadError, PairError
from specdemo.models.catalogue import require_draft
from specdemo.models.checks import load_tokenizer
from specdemo.models.converted import folder_of
from specdemo.models.devices import check_devices, draft_device, properties
from specdemo.models.folder import read_config
from specdemo.records import FinishReason, ModelPair, Request
from specdemo.strategies import Plain, Strategy

PipelineKind = Literal["plain", "model", "lookup"]


def kind_of(strategy: Strategy) -> PipelineKind:
    if isinstance(strategy, Plain):
        return "plain"
    return "model" if strategy.drafter.model else "lookup"


def generation_config(
    pipeline: openvino_genai.ContinuousBatchingPipeline, request: Request, **changes: Any
) -> openvino_genai.GenerationConfig:
    config, defaults = openvino_genai.GenerationConfig(), pipeline.get_config()  # the model's own may search beams
    config.eos_token_id, config.stop_token_ids = defaults.eos_token_id, defaults.stop_token_ids
    for name, value in {**formats.genai(request), **changes, "apply_chat_template": False}.items():
        setattr(config, name, value)
    return config  # the chat template is already in the prompt


class Output(NamedTuple):
    ids: tuple[int, ...]
    log_probabilities: tuple[float, ...]
    finish_reason: FinishReason | None


_REASONS: dict[openvino_genai.GenerationFinishReason, FinishReason] = {
    openvino_genai.GenerationFinishReason.STOP: "stop",
    openvino_genai.GenerationFinishReason.LENGTH: "length",
}


class Pipelines:
    def __init__(self, pair: ModelPair, *, lazy: bool = False) -> None:
        self.pair = pair
        check_devices(pair.runtime, head=pair.head is not None)
        self._device, self._draft_device = pair.runtime.device, draft_device(pair.runtime)
        self._loaded: dict[PipelineKind, openvino_genai.ContinuousBatchingPipeline] = {}
        self._draft_model: LanguageModel | None = None
        self.tokenizer = Tokenizer(pair.target)
        if pair.draft is not None and pair.head is None:  # a head's tokenizer is missing or unused
            self.tokenizer.check_fits(Tokenizer(pair.draft))
        if not lazy:
            self.get("plain")

    def get(self, kind: PipelineKind) -> openvino_genai.ContinuousBatchingPipeline:
        if kind not in self._loaded:
            for other in self._loaded.keys() - {"plain"}:
                del self._loaded[other]
            self._loaded[kind] = self._build(kind)
        return self._loaded[kind]

    def start(
        self, kind: PipelineKind, ids: Sequence[int], request: Request, **changes: Any
    ) -> "openvino_genai.GenerationHandle":
        pipeline = self.get(kind)
        with self.drop_on_failure(kind):
            return pipeline.add_request(
                next(_request_ids), as_tensor(ids), generation_config(pipeline, request, **changes)
            )

    def step(self, kind: PipelineKind) -> None:
        with self.drop_on_failure(kind):
            self._loaded[kind].step()

    def read(self, handle: "openvino_genai.GenerationHandle") -> Output:
        """Return the tokens that a request has committed since the last call.

        Raises an EngineError if the KV cache has no room, for which GenAI only sets a status.
        """
        ids: list[int] = []
        log_probabilities: list[float] = []
        finish_reason = None
        while handle.can_read():
            for output in handle.read().values():
                ids += output.generated_ids
                log_probabilities += output.generated_log_probs
                finish_reason = _REASONS.get(output.finish_reason, finish_reason)
        if handle.get_status() == openvino_genai.GenerationStatus.IGNORED:
            raise EngineError("The KV cache has no room for this run; shorten the prompt, or ask for fewer tokens.")
        return Output(tuple(ids), tuple(log_probabilities), finish_reason)

    @contextmanager
    def drop_on_failure(self, kind: PipelineKind) -> Iterator[None]:
        """Raise GenAI failures as `EngineError`, and drop the pipeline: no later request on it would work."""
        try:
            yield
        except OPENVINO_FAILURES as error:
            self._loaded.pop(kind, None)
            raise EngineError.of(error) from error

    def cancel(self, kind: PipelineKind, handles: Sequence["openvino_genai.GenerationHandle"]) -> None:
        for handle in handles:
            handle.cancel()
        if handles and kind in self._loaded:
            with suppress(EngineError):
                self.step(kind)

    def draft_model(self) -> LanguageModel:
        if self._draft_model is None:
            path, device = folder_of(require_draft(self.pair)), self._draft_device
            self._draft_model = LanguageModel(path, device, properties(self.pair.runtime, device))
        return self._draft_model

    def clear(self) -> None:
        self._loaded.clear()
        self._draft_model = None

    def _build(self, kind: PipelineKind) -> openvino_genai.ContinuousBatchingPipeline:
        target, device, runtime = self.pair.target, self._device, self.pair.runtime
        options: dict[str, Any] = dict(properties(runtime, device))
        if kind == "model":
            draft, draft_on = require_draft(self.pair), self._draft_device
            used = properties(runtime, draft_on)
            try:
                options["draft_model"] = openvino_genai.draft_model(folder_of(draft), draft_on, **used)
            except OPENVINO_FAILURES as error:
                raise LoadError.of(error, f"OpenVINO cannot load {draft.name!r}", "export it again") from error
        elif kind == "lookup":
            options["prompt_lookup"] = True
        try:
            model = folder_of(target), load_tokenizer(target)
            return openvino_genai.ContinuousBatchingPipeline(*model, _scheduler_config(self.pair), device, **options)
        except OPENVINO_FAILURES as error:
            if kind == "model" and self.pair.head is not None:
                message = f"The head {require_draft(self.pair).name!r} does not fit {target.name!r}"
                advice = "choose the target it was trained for, which must have at least ten layers"
                raise PairError.of(error, message, advice) from error
            message = f"OpenVINO cannot load {target.name!r} on {device}"
            raise LoadError.of(error, message, "export it again") from error


_request_ids = count(1)
_BLOCK = 32  # tokens in a block of the KV cache on CPU
_EXTRA_TOKENS = 64  # proposals after the longest text, and partly filled blocks of a draft
_CACHE_BYTES = 2**30  # of a pipeline's cache that keeps a chat's turns; its longest text has no more room


def _scheduler_config(pair: ModelPair) -> openvino_genai.SchedulerConfig:
    """A cache that grows as needed is the smaller one, but overwrites earlier turns instead of growing for them."""
    config = openvino_genai.SchedulerConfig()
    if pair.runtime.enable_prefix_caching:
        config.enable_prefix_caching, config.num_kv_blocks = True, _pool_blocks(pair)
    config.dynamic_split_fuse, config.max_num_batched_tokens = True, PREFILL_CHUNK
    return config


def _pool_blocks(pair: ModelPair) -> int:
    """Return the blocks of the longest text, within `_CACHE_BYTES`; 0 (the cache grows) if sizes are unknown."""
    config = read_config(folder_of(pair.target))
    config = config.get("text_config") or config
    layers, heads, hidden = (config.get(key) for key in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
    if not (layers and heads and hidden and pair.target.context_length and pair.runtime.device.startswith("CPU")):
        return 0
    size = config.get("head_dim") or hidden // heads
    block_bytes = 4 * _BLOCK * 2 * layers * size * (config.get("num_key_value_heads") or heads)  # in f32
    return min(-(-(pair.target.context_length + _EXTRA_TOKENS) // _BLOCK), int(_CACHE_BYTES // block_bytes))


def as_tensor(ids: Sequence[int]) -> openvino.Tensor:
    """Return token ids as a tensor, shape (1, tokens)."""
    return openvino.Tensor(np.array([ids], np.int64))
