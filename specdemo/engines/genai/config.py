"""A request as `openvino_genai.GenerationConfig`, and the rules of GenAI that shape it."""

from typing import Literal

import openvino_genai

from specdemo.records import Request
from specdemo.ways import Confidence, Constant, Lookup, Plain, Tree, Way

Kind = Literal["plain", "model", "lookup"]
"""What a pipeline decodes with: the target alone, a draft model, or prompt lookup."""

_NO_TOP_K = 2**63 - 1
_NEVER_BELOW = 1e-30  # GenAI takes a threshold of 0 for "no threshold set"


def kind_of(way: Way) -> Kind:
    """The pipeline that decodes this way."""
    if isinstance(way, Plain):
        return "plain"
    return "lookup" if isinstance(way, Lookup) else "model"


def tells_probabilities(request: Request) -> bool:
    """Whether GenAI is asked for the target's probability of each committed token.

    Only where it must compute probabilities anyway, since that takes time: in greedy decoding it applies a
    confidence threshold only with `logprobs=1`. Without it, the draft's probability counts as unknown and the
    draft stops after one token, whatever the threshold.
    """
    return isinstance(request.way, Confidence) and not request.sampling.do_sample


def generation_config(
    pipeline: openvino_genai.ContinuousBatchingPipeline, request: Request
) -> openvino_genai.GenerationConfig:
    """The request for the pipeline of its kind; end-of-text tokens are the model's own."""
    config, sampling = pipeline.get_config(), request.sampling
    config.max_new_tokens = request.max_new_tokens
    config.ignore_eos = request.ignore_eos
    config.repetition_penalty = sampling.repetition_penalty
    config.do_sample = sampling.do_sample
    if sampling.do_sample:
        config.temperature = sampling.temperature
        config.top_p = sampling.top_p
        config.top_k = sampling.top_k or _NO_TOP_K
        config.rng_seed = sampling.seed
    if tells_probabilities(request):
        config.logprobs = 1
    match request.way:
        case Constant(lookahead):
            config.num_assistant_tokens = lookahead
        case Confidence(threshold):
            config.assistant_confidence_threshold = threshold or _NEVER_BELOW
        case Tree(depth, branching, lookahead):
            config.num_assistant_tokens = lookahead
            config.tree_depth, config.branching_factor = depth, branching
        case Lookup(ngram, lookahead):
            config.num_assistant_tokens, config.max_ngram_size = lookahead, ngram
    return config
