"""A pair's continuous-batching pipelines in `openvino_genai`, each built when first needed.

Plain decoding, draft model and prompt lookup need a pipeline each, since a speculative pipeline cannot decode
plainly. Only the last speculative one stays loaded, so at most two copies of the target are in memory.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import openvino
import openvino_genai

from specdemo.engines.base import PREFILL_CHUNK
from specdemo.engines.language_model import LanguageModel
from specdemo.engines.text import Tokenizer
from specdemo.errors import OPENVINO_FAILURES, CacheError, LoadError, PairError, known_cause
from specdemo.models.converted import folder_of
from specdemo.models.devices import check_devices, check_head_device, draft_device, draft_runtime, properties
from specdemo.models.pairs import require_draft
from specdemo.records import FinishReason, ModelPair, Request
from specdemo.strategies import Plain, Strategy

PipelineKind = Literal["plain", "model", "lookup"]
"""A pipeline's mode: the target alone, a draft model, or prompt lookup."""


def kind_of(strategy: Strategy) -> PipelineKind:
    """Return the kind of pipeline for a strategy."""
    if isinstance(strategy, Plain):
        return "plain"
    return "model" if strategy.drafter.model else "lookup"


def generation_config(
    pipeline: openvino_genai.ContinuousBatchingPipeline, request: Request
) -> openvino_genai.GenerationConfig:
    """Return the request's generation config; end-of-text tokens are the model's own."""
    config = pipeline.get_config()
    for name, value in request.genai().items():
        setattr(config, name, value)
    config.apply_chat_template = False  # already applied to the prompt; GenAI applies it to texts only
    return config


class Pipelines:
    """The pipelines of one pair."""

    def __init__(self, pair: ModelPair, *, lazy: bool = False) -> None:
        """Check that the pair can be used; load its target, unless `lazy`.

        Raises:
            DeviceError: this machine has no such device, or it cannot be used.
            PairError: the tokenizers of target and draft differ.
            LoadError: OpenVINO cannot load a model.
            CacheError: the KV cache does not fit into memory.
        """
        self.pair = pair
        check_devices(pair.runtime)
        if pair.head is not None:
            check_head_device(pair.runtime.device)
        self._device, self._draft_device = pair.runtime.device, draft_device(pair.runtime)
        self._loaded: dict[PipelineKind, openvino_genai.ContinuousBatchingPipeline] = {}
        self._draft_model: LanguageModel | None = None
        self._target_model: LanguageModel | None = None
        self.tokenizer = Tokenizer(pair.target)
        if pair.draft is not None and pair.head is None:  # a head's tokenizer is missing or unused
            self.tokenizer.check_fits(Tokenizer(pair.draft))
        if not lazy:
            self.get("plain")

    def get(self, kind: PipelineKind) -> openvino_genai.ContinuousBatchingPipeline:
        """Return the pipeline of this kind, built if necessary."""
        self._target_model = None
        if kind not in self._loaded:
            for other in self._loaded.keys() - {"plain"}:
                del self._loaded[other]
            self._loaded[kind] = self._build(kind)
        return self._loaded[kind]

    def prompt(self, ids: Sequence[int]) -> openvino.Tensor | str:
        """Return a prompt as the target's pipelines take it: its ids, or its text where they take embeddings.

        Raises:
            PromptError: GenAI would read the text differently.
        """
        return self.tokenizer.text_of(ids) if self.pair.target.in_parts else as_tensor(ids)

    def generate(self, kind: PipelineKind, request: Request) -> Any:
        """Generate a whole answer at once, with GenAI's own counters.

        Raises:
            PromptError: the prompt cannot be used.
            RuntimeError: GenAI failed; the pipeline must be discarded.
        """
        pipeline = self.get(kind)
        prompt, config = self.prompt(self.tokenizer.encode_prompt(request)), generation_config(pipeline, request)
        return pipeline.generate([prompt], [config])[0]

    def discard(self, kind: PipelineKind) -> None:
        """Drop a failed pipeline; it is rebuilt when next needed."""
        self._loaded.pop(kind, None)

    def draft_model(self) -> LanguageModel:
        """Return the draft outside GenAI, for replaying its proposals."""
        if self._draft_model is None:
            path, device = folder_of(require_draft(self.pair)), self._draft_device
            self._draft_model = LanguageModel(path, device, properties(draft_runtime(self.pair.runtime), device))
        return self._draft_model

    def target_model(self) -> LanguageModel:
        """Return the target outside GenAI, which does not report logits; kept until the next request."""
        if self._target_model is None:
            runtime, device = properties(self.pair.runtime, self._device), self._device
            self._target_model = LanguageModel(folder_of(self.pair.target), device, runtime)
        return self._target_model

    def clear(self) -> None:
        self._loaded.clear()
        self._draft_model = self._target_model = None

    def _build(self, kind: PipelineKind) -> openvino_genai.ContinuousBatchingPipeline:
        target, device, runtime = self.pair.target, self._device, self.pair.runtime
        options: dict[str, Any] = dict(properties(runtime, device))
        if kind == "model":
            draft = folder_of(require_draft(self.pair))
            draft_options = properties(draft_runtime(runtime), self._draft_device)
            options["draft_model"] = openvino_genai.draft_model(draft, self._draft_device, **draft_options)
        elif kind == "lookup":
            options["prompt_lookup"] = True
        try:
            return openvino_genai.ContinuousBatchingPipeline(
                folder_of(target), scheduler_config(self.pair), device, options
            )
        except OPENVINO_FAILURES as error:
            if known_cause(error) is None and "cache size" in str(error):
                raise CacheError(
                    f"A KV cache of {runtime.cache_size} GB does not fit in this machine's memory; "
                    "choose a smaller cache size."
                ) from error
            if kind == "model" and self.pair.eagle3:
                raise PairError.of(
                    error,
                    f"The EAGLE-3 head {require_draft(self.pair).name!r} does not fit {target.name!r}",
                    "choose the target it was trained for, which must have at least ten layers",
                ) from error
            if kind == "model" and self.pair.head == "mtp":
                what = f"GenAI cannot load the multi-token-prediction head of {target.name!r}"
                raise PairError.of(error, what, "export the model again") from error
            if kind == "model" and self.pair.head == "dflash":
                raise PairError.of(
                    error,
                    f"The DFlash draft {require_draft(self.pair).name!r} does not fit {target.name!r}",
                    "choose the target it was trained for, exported with its hidden states named",
                ) from error
            what = f"OpenVINO cannot load {target.name!r} on {device}"
            raise LoadError.of(error, what, "export it again") from error


def scheduler_config(pair: ModelPair) -> openvino_genai.SchedulerConfig:
    config = openvino_genai.SchedulerConfig()
    config.cache_size = pair.runtime.cache_size
    config.enable_prefix_caching = pair.runtime.enable_prefix_caching
    config.dynamic_split_fuse = pair.runtime.dynamic_split_fuse
    whole = pair.target.context_length or 2**16
    config.max_num_batched_tokens = PREFILL_CHUNK if config.dynamic_split_fuse else whole
    return config


_REASONS: dict[openvino_genai.GenerationFinishReason, FinishReason] = {
    openvino_genai.GenerationFinishReason.STOP: "stop",
    openvino_genai.GenerationFinishReason.LENGTH: "length",
}


class Output(NamedTuple):
    """New tokens, their log-probabilities, and the finish reason once the request has ended."""

    ids: tuple[int, ...]
    logarithms: tuple[float, ...]
    finish_reason: FinishReason | None


def read(handle: "openvino_genai.GenerationHandle") -> Output:
    """Return what a request has committed since the last call."""
    ids: list[int] = []
    logarithms: list[float] = []
    finish_reason = None
    while handle.can_read():
        for output in handle.read().values():
            ids += output.generated_ids
            logarithms += output.generated_log_probs
            finish_reason = _REASONS.get(output.finish_reason, finish_reason)
    return Output(tuple(ids), tuple(logarithms), finish_reason)


def check_fits(handle: "openvino_genai.GenerationHandle", cache_size: int) -> None:
    """Check that a request fits into the KV cache; GenAI only reports a status.

    Raises:
        CacheError: it does not fit.
    """
    if handle.get_status() == openvino_genai.GenerationStatus.IGNORED:
        raise CacheError(
            f"The KV cache of {cache_size} GB is too small for this run; "
            "shorten the prompt, ask for fewer tokens, or start with a larger cache size."
        )


def as_tensor(ids: Sequence[int]) -> openvino.Tensor:
    """Return token ids as a tensor, shape (1, tokens)."""
    return openvino.Tensor(np.array([ids], np.int64))
