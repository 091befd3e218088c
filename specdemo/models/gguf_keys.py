"""The keys and tensors of GGUF files that the conversion supports.

A key that changes the model's output is applied, or the file is refused. Files with unknown keys of the architecture
or tokenizer are refused, too. Meanings:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, and llama.cpp where that is silent.
"""

import re
from collections.abc import Iterator

from specdemo.errors import quoted
from specdemo.models.gguf_header import Header

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3, _QWEN2 = (_CL100K.format(digits=digits) for digits in ("{1,3}", ""))
_LOWER, _UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {
    ("default",): (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    ("gpt-2", "gpt2", "phi-2", "olmo", "mpt"): (_GPT2,),
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "minerva-7b"): (r"\p{N}", _GPT2),
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "smaug-bpe", "dbrx"): (_LLAMA3,),
    ("qwen2", "deepseek-r1-qwen", "stablelm2"): (_QWEN2,),
    ("tekken",): (_TEKKEN,),
}
SPLITS = {name: patterns for names, patterns in _SPLITS.items() for name in names}  # from their tokenizer.json
_TIKTOKEN = {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken"}
"""With these, llama.cpp encodes a word that is a token as that token, and adds BOS unless the file forbids it."""


_MODEL_KEYS: dict[str, tuple[object, ...] | None] = {
    **dict.fromkeys(
        (
            "context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count",
            "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count",
            "attention.key_length", "attention.value_length", "rope.scaling.type", "rope.scaling.factor",
            "rope.scale_linear", "attention.sliding_window",
            # without effect:
            "vocab_size", "rope.scaling.original_context_length", "rope.scaling.finetuned", "tensor_data_layout",
            "attention.layer_norm_epsilon", "expert_used_count", "expert_feed_forward_length",
            "attention.max_alibi_bias",
        )
    ),
    "expert_count": (0, 1), "attention.causal": (True,), "pooling_type": (0,), "use_parallel_residual": (False,),
    "attention.clamp_kqv": (0.0,), "attention.scale": (0.0,), "logit_scale": (0.0, 1.0), "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0), "nextn_predict_layers": (0,),
}  # fmt: skip
"""Keys of the architecture: applied or without effect (None), or supported with these values only."""
_TOKENIZER_KEYS: dict[str, tuple[object, ...] | None] = {
    **dict.fromkeys(
        ("model", "pre", "tokens", "token_type", "merges", "add_bos_token", "bos_token_id", "eos_token_id",
         "eot_token_id", "eom_token_id", "padding_token_id",
         # without effect:
         "scores", "unknown_token_id", "seperator_token_id", "separator_token_id", "cls_token_id", "mask_token_id",
         "fim_pre_token_id", "fim_suf_token_id", "fim_mid_token_id", "fim_pad_token_id", "fim_rep_token_id",
         "fim_sep_token_id", "prefix_token_id", "suffix_token_id", "middle_token_id", "add_sep_token",
         "add_space_prefix", "remove_extra_whitespaces", "token_type_count"),
    ),
    "add_eos_token": (False,),
}  # fmt: skip
"""Keys after `tokenizer.ggml.`."""
_LAYER = r"blk\.\d+\."
_COMMON_TENSORS = (
    rf"(token_embd|output|output_norm|rope_freqs|{_LAYER}(attn_norm|ffn_norm|attn_q|attn_k))\.weight"
    rf"|{_LAYER}(attn_v|attn_output|ffn_gate|ffn_up|ffn_down)\.(weight|bias)"
)
_LAYER_TENSORS = (
    "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down",
)  # fmt: skip
_TENSOR_NAMES = {
    "llama": re.compile(_COMMON_TENSORS),
    "qwen2": re.compile(rf"{_COMMON_TENSORS}|{_LAYER}(attn_q|attn_k)\.bias"),
    "qwen3": re.compile(rf"{_COMMON_TENSORS}|{_LAYER}(attn_q|attn_k)(\.bias|_norm\.weight)"),
}  # converted tensors, by family


def refusal_of(header: Header) -> str | None:
    """Return why a file of a supported family cannot be converted faithfully, as a clause that follows its name."""
    family = header.family
    for prefix, table in ((f"{family}.", _MODEL_KEYS), ("tokenizer.ggml.", _TOKENIZER_KEYS)):
        for key, value in header.metadata.items():
            if not key.startswith(prefix):
                continue
            name = key.removeprefix(prefix)
            if name not in table:
                return f"has the setting {key}, whose effect is unknown"
            values = table[name]
            if values is None or value in values:
                continue
            if name == "expert_count":
                return f"is a mixture of experts ({key} {quoted(value)})"
            return f"has the setting {key} {quoted(value)}, whose effect is not supported"
    return _tensor_refusal(header) or _tokenizer_refusal(header) or _attention_refusal(header)


def _tensor_refusal(header: Header) -> str | None:
    for tensor in header.tensors:
        if _TENSOR_NAMES[header.family].fullmatch(tensor.name) is None:
            return f"has the tensor {tensor.name}, whose effect is unknown"
    names = {tensor.name for tensor in header.tensors}
    for name in _required(header):
        if name not in names:
            return f"lacks the tensor {name}"
    return None


def _required(header: Header) -> Iterator[str]:
    yield from ("token_embd.weight", "output_norm.weight")
    for layer in range(header.integer(f"{header.family}.block_count") or 0):
        yield from (f"blk.{layer}.{name}.weight" for name in _LAYER_TENSORS)


def _tokenizer_refusal(header: Header) -> str | None:
    kind, split = header.text("tokenizer.ggml.model"), header.text("tokenizer.ggml.pre") or "default"
    if kind != "gpt2":
        names = {"llama": "a SentencePiece tokenizer", None: "no tokenizer"}
        return f"has {names.get(kind, f'the tokenizer {kind!r}')}, but only byte-level BPE is supported"
    if split not in SPLITS:
        return f"splits text by the unknown rule {split!r}"
    if not header.length("tokenizer.ggml.tokens") or not header.length("tokenizer.ggml.merges"):
        return "holds no merges for its tokenizer"
    return None


def _attention_refusal(header: Header) -> str | None:
    family, integer = header.family, header.integer
    heads, width = integer(f"{family}.attention.head_count"), integer(f"{family}.embedding_length")
    lengths = {integer(f"{family}.attention.{which}_length") for which in ("key", "value")} - {None}
    default = width // heads if heads and width else None
    if len(lengths) > 1 or (family != "qwen3" and lengths - {default}):
        return "has heads of another size than its width divided by their number"
    size = next(iter(lengths), default)
    if integer(f"{family}.rope.dimension_count") not in (None, size):
        return "applies positions to a part of each head only"
    window = integer(f"{family}.attention.sliding_window")
    if window and window < (integer(f"{family}.context_length") or 0):
        return f"attends to the last {window} tokens only"
    scaling = header.text(f"{family}.rope.scaling.type")
    return None if scaling in (None, "none", "linear") else f"scales positions by {scaling!r}"


def head_size(header: Header) -> int:
    """Return the numbers of a head of attention; 0 if the file does not say."""
    family, integer = header.family, header.integer
    heads, width = integer(f"{family}.attention.head_count"), integer(f"{family}.embedding_length")
    return integer(f"{family}.attention.key_length") or (width // heads if heads and width else 0)


def keeps_whole_words(header: Header) -> bool:
    return header.text("tokenizer.ggml.pre") in _TIKTOKEN


def adds_bos(header: Header) -> bool:
    setting = header.metadata.get("tokenizer.ggml.add_bos_token")
    adds = setting if isinstance(setting, bool) else keeps_whole_words(header)
    return adds and header.integer("tokenizer.ggml.bos_token_id") is not None


def position_scale(header: Header) -> float:
    """Return the factor of all positions: linear scaling divides them. Llama 3's factors are a tensor instead."""
    prefix = f"{header.family}.rope."
    if header.text(f"{prefix}scaling.type") == "none":
        return 1.0
    return 1 / (header.number(f"{prefix}scaling.factor") or header.number(f"{prefix}scale_linear") or 1.0)
