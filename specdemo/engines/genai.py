"""Decoding with `openvino_genai`'s continuous-batching pipelines, stepped one round at a time.

Why a pipeline each for plain, draft model and prompt lookup: a speculative pipeline cannot decode plainly.
The plain one stays loaded; of the others only the one last used, so at most two copies of the target are in
memory. Speed is bound by reading weights from memory, which is why a pass over several tokens costs little
more than a pass over one, and why speculation can pay at all.

Facts about openvino-genai 2026.4 that shape this module, each covered by a test:

- After a failed step every later request on that pipeline fails too. It is dropped and rebuilt when needed.
- A request that does not fit the KV cache raises nothing; its status becomes IGNORED.
"""

from pathlib import Path
from statistics import fmean, median
from typing import Any

import openvino_genai

from specdemo.engines.base import Decoder
from specdemo.engines.genai_config import Kind, generation_config
from specdemo.engines.genai_decoder import GenAIDecoder
from specdemo.engines.stateful import StatefulModel
from specdemo.environment import describe_environment
from specdemo.errors import CacheError, LoadError, PairError
from specdemo.models.devices import check_device, precision_properties
from specdemo.models.pairs import check_vocabularies
from specdemo.records import Environment, Model, ModelPair
from specdemo.settings import GenerationSettings


class GenAIEngine:
    """A pair in `openvino_genai` pipelines, each built when first needed."""

    def __init__(self, pair: ModelPair) -> None:
        """Check that the pair can work; load its target.

        Raises:
            DeviceError: this machine has no such device.
            PairError: the tokenizers of target and draft differ.
            LoadError: OpenVINO refused to load a model.
            CacheError: the KV cache does not fit into memory.
        """
        self.pair = pair
        self._device = pair.runtime.device
        self._draft_device = pair.runtime.draft_device or self._device
        for device in (self._device, self._draft_device):
            check_device(device)
        self._properties = precision_properties(pair.runtime.precision)
        self._pipelines: dict[Kind, openvino_genai.ContinuousBatchingPipeline] = {}
        self._draft_model: StatefulModel | None = None
        self.tokenizer = _load_tokenizer(pair.target)
        if pair.draft is not None:
            check_vocabularies(self.tokenizer.get_vocab(), _load_tokenizer(pair.draft).get_vocab())
        self.environment: Environment = describe_environment(pair)
        self.pipeline("plain")

    def plain(self) -> Decoder:
        """A decoder of the target alone."""
        return GenAIDecoder(self, "plain")

    def speculative(self, settings: GenerationSettings) -> Decoder:
        """A decoder with the drafter these settings name."""
        if settings.drafter == "model":
            self._require_draft()
        return GenAIDecoder(self, settings.drafter)

    def draft_step_seconds(self, prompt: str, settings: GenerationSettings) -> float | None:
        """Median over rounds of the draft's seconds / its steps, by the counters that come with `generate()`."""
        if self.pair.draft is None:
            return None
        config = generation_config(self.pipeline("model"), "model", settings)
        result = self.pipeline("model").generate([self.tokenizer.encode(prompt).input_ids], [config])[0]
        counters = result.extended_perf_metrics
        microseconds = list(counters.draft_model_metrics.raw_metrics.m_durations)[1:]  # the first is the prefill
        steps = settings.num_assistant_tokens
        rounds = (microseconds[i : i + steps] for i in range(0, len(microseconds) - steps + 1, steps))
        return median(fmean(batch) for batch in rounds) / 1e6

    def close(self) -> None:
        """Free all models."""
        self._pipelines.clear()
        self._draft_model = None

    def pipeline(self, kind: Kind) -> openvino_genai.ContinuousBatchingPipeline:
        """The pipeline of this kind, built if need be."""
        if kind not in self._pipelines:
            for other in self._pipelines.keys() - {"plain"}:
                del self._pipelines[other]
            self._pipelines[kind] = self._build(kind)
        return self._pipelines[kind]

    def discard(self, kind: Kind) -> None:
        """Drop a pipeline that failed; it is rebuilt when next needed."""
        self._pipelines.pop(kind, None)

    def draft_model(self) -> StatefulModel:
        """The draft outside GenAI, for replaying what it proposed."""
        if self._draft_model is None:
            path = _path(self._require_draft())
            self._draft_model = StatefulModel(path, self._draft_device, self._properties)
        return self._draft_model

    def _build(self, kind: Kind) -> openvino_genai.ContinuousBatchingPipeline:
        target, device = self.pair.target, self._device
        properties: dict[str, Any] = dict(self._properties)
        if kind == "model":
            draft = _path(self._require_draft())
            properties["draft_model"] = openvino_genai.draft_model(draft, self._draft_device, **self._properties)
        elif kind == "lookup":
            properties["prompt_lookup"] = True
        try:
            return openvino_genai.ContinuousBatchingPipeline(_path(target), self._scheduler(), device, properties)
        except RuntimeError as error:
            if "cache size" in str(error):
                raise CacheError(
                    f"A KV cache of {self.pair.runtime.cache_size} GB does not fit into this machine's memory; "
                    "choose a smaller cache size."
                ) from error
            raise LoadError(f"OpenVINO cannot load {target.name!r} on {device}; export it again.") from error

    def _scheduler(self) -> openvino_genai.SchedulerConfig:
        config = openvino_genai.SchedulerConfig()
        config.cache_size = self.pair.runtime.cache_size
        config.enable_prefix_caching = False  # a second run of a prompt must prefill as the first did
        config.dynamic_split_fuse = False  # one step is the whole prefill
        config.max_num_batched_tokens = self.pair.target.context_length or 2**16
        return config

    def _require_draft(self) -> Model:
        if self.pair.draft is None:
            raise PairError("This pair has no draft model; give one, or choose prompt lookup.")
        return self.pair.draft


def _load_tokenizer(model: Model) -> openvino_genai.Tokenizer:
    try:
        return openvino_genai.Tokenizer(_path(model))
    except RuntimeError as error:
        raise LoadError(f"OpenVINO cannot load the tokenizer of {model.name!r}; export it again.") from error


def _path(model: Model) -> Path:
    if model.path is None:  # read from JSON, which never holds paths
        raise LoadError(f"It is not known where {model.name!r} lies on this machine; choose its folder.")
    return model.path
