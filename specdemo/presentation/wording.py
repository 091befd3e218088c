"""Settings in words: every result names those that made it."""

from specdemo.records import Comparison, ModelPair
from specdemo.settings import GenerationSettings
from specdemo.strategies import (
    AsServed,
    Auto,
    Both,
    BothAuto,
    Confidence,
    Constant,
    Heuristic,
    Lookup,
    Plain,
    Planned,
    ServerKind,
    Strategy,
    Tree,
)

ENGINES = {"genai": "GenAI engine", "traced": "traced engine", "served": "served engine"}
SERVERS: dict[ServerKind, str] = {
    "llama.cpp": "llama.cpp",
    "vllm": "vLLM",
    "ovms": "OpenVINO Model Server",
    "sglang": "SGLang",
    "openai": "an OpenAI-compatible server",
}
DRAFTERS = {"model": "draft model", "lookup": "prompt lookup", "both": "draft model and prompt lookup"}


def in_words(settings: GenerationSettings) -> str:
    """How these settings decode, such as "lookahead 4, draft model, traced engine, greedy, at most 128 tokens"."""
    return f"{strategy_words(settings.strategy)}, {shared_words(settings)}"


def shared_words(settings: GenerationSettings) -> str:
    """The same without the decoding strategy, which a sweep or a benchmark varies."""
    return ", ".join(
        [
            DRAFTERS[settings.drafter],
            ENGINES[settings.engine],
            common_words(settings),
        ]
    )


def common_words(settings: GenerationSettings) -> str:
    """The same without who proposes and which engine decodes."""
    return ", ".join(
        [
            _sampling(settings),
            *(["no KV cache"] if settings.kv_cache == "off" else []),
            f"at most {settings.max_new_tokens} tokens",
        ]
    )


def is_chat(pair: ModelPair, settings: GenerationSettings) -> bool:
    """Whether prompts are messages of a chat."""
    return pair.target.chat_template and settings.apply_chat_template


def prompt_of(comparison: Comparison) -> str:
    """The prompt as it stands before the text: which goes on from it, or answers it from the next line on."""
    return comparison.prompt + ("\n" if is_chat(comparison.pair, comparison.settings) else "")


def strategy_words(strategy: Strategy) -> str:
    """Who stops proposing when, such as "lookahead 4"."""
    match strategy:
        case Constant(lookahead):
            return f"lookahead {lookahead}"
        case Confidence(threshold):
            return f"confidence threshold {threshold:g}"
        case Heuristic():
            return "heuristic lookahead"
        case Auto():
            return "automatic lookahead"
        case BothAuto(ngram):
            return f"automatic lookahead, n-grams of up to {ngram}"
        case Lookup(ngram, lookahead) | Both(ngram, lookahead):
            return f"lookahead {lookahead}, n-grams of up to {ngram}"
        case Tree(depth, branching, lookahead):
            return f"tree of depth {depth}, branching {branching}, {lookahead} tokens"
        case AsServed():
            return "the server's own lookahead"
        case Plain() | Planned():
            return "plain"


def _sampling(settings: GenerationSettings) -> str:
    penalty = f", repetition penalty {settings.repetition_penalty:g}" if settings.repetition_penalty != 1 else ""
    if not settings.do_sample:
        return f"greedy{penalty}"
    return (
        f"sampling at temperature {settings.temperature:g}, top-p {settings.top_p:g}, top-k {settings.top_k}"
        f"{penalty}, seed {settings.seed}"
    )
