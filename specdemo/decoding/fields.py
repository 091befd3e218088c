"""A request as the fields of software that decodes: what the engines send, and what the lines to copy say.

Every field is given, even where a value seems to be the default: a model's own generation config may say otherwise.
"""

from typing import Any

from specdemo.records import Request
from specdemo.strategies import Confidence

_NO_TOP_K = 2**63 - 1


def reports_probabilities(request: Request) -> bool:
    """Whether GenAI is asked for the target's probability of each committed token.

    Only where it must compute probabilities anyway, since that takes time: in greedy decoding it applies a
    confidence threshold only with `logprobs=1`. Without it, the draft's probability counts as unknown and the
    draft stops after one token, whatever the threshold.
    """
    return isinstance(request.strategy, Confidence) and not request.sampling.do_sample


def genai(request: Request) -> dict[str, Any]:
    """The fields of OpenVINO GenAI's `GenerationConfig`: those of transformers and a few more."""
    sampling = request.sampling
    found = transformers(request) | {"ignore_eos": request.ignore_eos}
    if sampling.do_sample:
        found |= {"top_k": sampling.top_k or _NO_TOP_K, "rng_seed": sampling.seed}
    if reports_probabilities(request):
        found["logprobs"] = 1
    return found | (request.strategy.genai() or {})


def openai(request: Request, *, beyond: bool = True) -> dict[str, Any]:
    """The fields of OpenAI's protocol; `beyond`: with those that vLLM, SGLang and OpenVINO Model Server add to it."""
    sampling = request.sampling
    found: dict[str, Any] = {
        "max_tokens": request.max_new_tokens,
        "temperature": sampling.temperature if sampling.do_sample else 0,
    }
    if sampling.do_sample:
        found |= {"top_p": sampling.top_p, "seed": sampling.seed}
    if beyond:
        found |= {"ignore_eos": request.ignore_eos, "repetition_penalty": sampling.repetition_penalty}
        found |= {"top_k": sampling.top_k or -1} if sampling.do_sample else {}
    return found


def llama_cpp(request: Request, window: int) -> dict[str, Any]:
    """The fields of llama.cpp's server, except how many tokens it is to write.

    `window`: how many of the last tokens a repetition penalty is for. It has no value for "all of them".
    """
    sampling = request.sampling
    return {
        "temperature": sampling.temperature if sampling.do_sample else 0,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": 0,
        "seed": sampling.seed,
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": window,
        "ignore_eos": request.ignore_eos,
    }


def transformers(request: Request) -> dict[str, Any]:
    """The arguments of transformers' `generate()`, except those of assisted decoding. It has no `ignore_eos`."""
    sampling = request.sampling
    found: dict[str, Any] = {
        "max_new_tokens": request.max_new_tokens,
        "repetition_penalty": sampling.repetition_penalty,
        "do_sample": sampling.do_sample,
    }
    if sampling.do_sample:
        found |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    return found
