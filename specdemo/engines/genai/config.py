"""Our settings as `openvino_genai.GenerationConfig`, and the rules of GenAI that shape it."""

from typing import Literal

import openvino_genai

from specdemo.settings import GenerationSettings

Kind = Literal["plain", "model", "lookup"]
"""What a pipeline decodes with: the target alone, a draft model, or prompt lookup."""

_NO_TOP_K = 2**63 - 1
_NEVER_BELOW = 1e-30  # GenAI takes a threshold of 0 for "no threshold set"


def tells_probabilities(kind: Kind, settings: GenerationSettings) -> bool:
    """Whether GenAI is asked for the target's probability of each committed token.

    Only where it must compute probabilities anyway, since that takes time: in greedy decoding it judges a
    confidence threshold only with `logprobs=1`. Without, it takes the draft's probability for unknown and
    stops after one token, whatever the threshold.
    """
    return kind == "model" and settings.policy == "confidence" and not settings.do_sample


def generation_config(
    pipeline: openvino_genai.ContinuousBatchingPipeline, kind: Kind, settings: GenerationSettings
) -> openvino_genai.GenerationConfig:
    """The settings for a pipeline of this kind; end-of-text tokens are the model's own."""
    config = pipeline.get_config()
    config.max_new_tokens = settings.max_new_tokens
    config.ignore_eos = settings.ignore_eos
    config.repetition_penalty = settings.repetition_penalty
    config.do_sample = settings.do_sample
    if settings.do_sample:
        config.temperature = settings.temperature
        config.top_p = settings.top_p
        config.top_k = settings.top_k or _NO_TOP_K
        config.rng_seed = settings.seed
    if tells_probabilities(kind, settings):
        config.logprobs = 1
    if kind == "model" and settings.policy == "confidence":
        config.assistant_confidence_threshold = settings.assistant_confidence_threshold or _NEVER_BELOW
    elif kind != "plain":
        config.num_assistant_tokens = settings.num_assistant_tokens
    if kind == "model":
        config.tree_depth = settings.tree_depth
        config.branching_factor = settings.branching_factor
    elif kind == "lookup":
        config.max_ngram_size = settings.max_ngram_size
    return config
