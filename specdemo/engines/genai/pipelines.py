"""The pair in `openvino_genai`'s continuous-batching pipelines, each built when first needed.

Why a pipeline each for plain, draft model and prompt lookup: a speculative pipeline cannot decode plainly.
The plain one stays loaded; of the others only the one last used, so at most two copies of the target are in
memory.
"""

from typing import Any

import openvino_genai

from specdemo.engines.genai.config import Kind
from specdemo.engines.language_model import LanguageModel
from specdemo.engines.tokenizer import Tokenizer, folder_of
from specdemo.errors import CacheError, LoadError, PairError
from specdemo.models.devices import check_device, precision_properties
from specdemo.models.pairs import check_vocabularies
from specdemo.records import Model, ModelPair


class Pipelines:
    """What is loaded of a pair."""

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
        self._loaded: dict[Kind, openvino_genai.ContinuousBatchingPipeline] = {}
        self._draft_model: LanguageModel | None = None
        self.tokenizer = Tokenizer(pair.target)
        if pair.draft is not None and not pair.eagle3:  # a head has no tokenizer, or one that means nothing
            check_vocabularies(self.tokenizer.vocabulary(), Tokenizer(pair.draft).vocabulary())
        self.get("plain")

    def get(self, kind: Kind) -> openvino_genai.ContinuousBatchingPipeline:
        """The pipeline of this kind, built if need be."""
        if kind not in self._loaded:
            for other in self._loaded.keys() - {"plain"}:
                del self._loaded[other]
            self._loaded[kind] = self._build(kind)
        return self._loaded[kind]

    def discard(self, kind: Kind) -> None:
        """Drop a pipeline that failed; it is rebuilt when next needed."""
        self._loaded.pop(kind, None)

    def draft_model(self) -> LanguageModel:
        """The draft outside GenAI, for replaying what it proposed."""
        if self._draft_model is None:
            path = folder_of(self.require_draft())
            self._draft_model = LanguageModel(path, self._draft_device, self._properties)
        return self._draft_model

    def require_draft(self) -> Model:
        """The pair's draft.

        Raises:
            PairError: it has none.
        """
        if self.pair.draft is None:
            raise PairError("This pair has no draft model; give one, or choose prompt lookup.")
        return self.pair.draft

    def clear(self) -> None:
        """Free all models."""
        self._loaded.clear()
        self._draft_model = None

    def _build(self, kind: Kind) -> openvino_genai.ContinuousBatchingPipeline:
        target, device = self.pair.target, self._device
        properties: dict[str, Any] = dict(self._properties)
        if kind == "model":
            draft = folder_of(self.require_draft())
            properties["draft_model"] = openvino_genai.draft_model(draft, self._draft_device, **self._properties)
        elif kind == "lookup":
            properties["prompt_lookup"] = True
        try:
            return openvino_genai.ContinuousBatchingPipeline(folder_of(target), self._scheduler(), device, properties)
        except RuntimeError as error:
            if "cache size" in str(error):
                raise CacheError(
                    f"A KV cache of {self.pair.runtime.cache_size} GB does not fit into this machine's memory; "
                    "choose a smaller cache size."
                ) from error
            if kind == "model" and self.pair.eagle3:
                raise PairError(
                    f"The EAGLE-3 head {self.require_draft().name!r} does not fit {target.name!r}; "
                    "choose the target that it was trained for, which must have ten layers or more."
                ) from error
            raise LoadError(f"OpenVINO cannot load {target.name!r} on {device}; export it again.") from error

    def _scheduler(self) -> openvino_genai.SchedulerConfig:
        config = openvino_genai.SchedulerConfig()
        config.cache_size = self.pair.runtime.cache_size
        config.enable_prefix_caching = False  # a second run of a prompt must prefill as the first did
        config.dynamic_split_fuse = False  # one step is the whole prefill
        config.max_num_batched_tokens = self.pair.target.context_length or 2**16
        return config
