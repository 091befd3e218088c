"""A request's settings under the names of other software. Engines send these fields, and `exports.code` shows them.

Defaults are included, since a model's generation config may differ from them.
"""

from specdemo.records import Request
from specdemo.strategies import Confidence, Fields

_NO_TOP_K = 2**63 - 1  # in GenAI
_DEFAULT_PENALTY_WINDOW = 4096  # last tokens that llama.cpp penalises, if the context length is unknown


def reports_probabilities(request: Request) -> bool:
    """Whether to ask GenAI for the target's probability of each committed token, which takes time.

    In greedy decoding a confidence threshold needs it: otherwise GenAI's draft stops after one token.
    """
    return isinstance(request.strategy, Confidence) and not request.sampling.do_sample


def genai(request: Request) -> Fields:
    sampling = request.sampling
    fields: Fields = {
        "max_new_tokens": request.max_new_tokens,
        "repetition_penalty": sampling.repetition_penalty,
        "do_sample": sampling.do_sample,
        "ignore_eos": request.ignore_eos,
    }
    if sampling.do_sample:
        fields |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
        fields |= {"top_k": sampling.top_k or _NO_TOP_K, "rng_seed": sampling.seed}
    if reports_probabilities(request):
        fields["logprobs"] = 1
    return fields | (request.strategy.genai() or {})


def openai(request: Request, *, include_defaults: bool = True) -> Fields:
    """Return fields of OpenAI's protocol, and those that vLLM and others add.

    Without `include_defaults`, additions that change nothing are left out: some servers refuse unknown fields.
    """
    sampling = request.sampling
    fields: Fields = {"max_tokens": request.max_new_tokens, "temperature": 0}
    added: Fields = {"ignore_eos": request.ignore_eos, "repetition_penalty": sampling.repetition_penalty}
    if sampling.do_sample:
        fields |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "seed": sampling.seed}
        added["top_k"] = sampling.top_k or -1
    defaults = {"ignore_eos": False, "repetition_penalty": 1, "top_k": -1}
    return fields | {name: value for name, value in added.items() if include_defaults or value != defaults[name]}


def llama_cpp(request: Request, context_length: int | None) -> Fields:
    """Return fields of llama.cpp's server; the repetition penalty covers the whole context."""
    sampling = request.sampling
    return {
        "temperature": sampling.temperature if sampling.do_sample else 0,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": 0,
        "seed": sampling.seed,
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": context_length or _DEFAULT_PENALTY_WINDOW,
        "ignore_eos": request.ignore_eos,
    }
