"""Running models: tokenizers, sequences with a KV cache, EAGLE-3 heads."""

import specdemo.telemetry  # noqa: F401 (before `openvino`)
from specdemo.runtime.language_model import (
    Adapt,
    HeadModel,
    LanguageModel,
    ModelSequence,
    draft_agreement,
    log_probabilities,
    show_states,
)
from specdemo.runtime.text import IncrementalText, Tokenizer, check_prompt, messages, texts

__all__ = [
    "Adapt",
    "HeadModel",
    "IncrementalText",
    "LanguageModel",
    "ModelSequence",
    "Tokenizer",
    "check_prompt",
    "draft_agreement",
    "log_probabilities",
    "messages",
    "show_states",
    "texts",
]
