"""Tiny GGUF files with random weights, of each family that is read, written by llama.cpp's own package."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from specdemo.models.converted import conversions, convert_here, converted_folder
from specdemo.settings import WeightsForm

EMBEDDING, LAYERS, HEADS, KV_HEADS, FEED_FORWARD, CONTEXT = 256, 2, 4, 2, 256, 512
END = "<|im_end|>"
_VALUE_TYPES = {
    bool: gguf.GGUFValueType.BOOL, int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32,
    str: gguf.GGUFValueType.STRING,
}  # fmt: skip
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write(
    path: Path,
    family: str = "llama",
    *kinds: str,
    chat: bool = True,
    architecture: str | None = None,
    more: dict[str, bool | int | float | str] | None = None,
    pre: str | None = None,
    merges: Sequence[str] = ("h e", "l l", "Ġ t"),
    words: Sequence[str] = (),
    defined: Sequence[str] = (),
    tokenizer: str = "gpt2",
    vectors: str = "F32",
    arrays: dict[str, np.ndarray[Any, Any]] | None = None,
) -> Path:
    """Write a file whose matrices have these types in turn, F32 by default; `arrays` replace the random weights.

    Tokens are single bytes, `merges`, `words` that no merge makes, special ones, and `defined` by the user.
    """
    written = architecture or family
    writer = gguf.GGUFWriter(path, written)
    writer.add_name("A tiny model")
    kinds = kinds or ("F32",)
    named = (kind for kind in gguf.LlamaFileType if kinds[0] in kind.name)
    writer.add_file_type(next(named, gguf.LlamaFileType.MOSTLY_Q8_0))
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(EMBEDDING)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    if family == "qwen3":  # the only one whose heads need not divide the embedding
        writer.add_key_length(head_size(family))
        writer.add_value_length(head_size(family))
    tokens = vocabulary(merges, defined, words)
    writer.add_tokenizer_model(tokenizer)
    writer.add_tokenizer_pre(pre or ("qwen2" if family.startswith("qwen") else "smollm"))
    writer.add_token_list(tokens)
    special = gguf.TokenType.CONTROL
    types = [special if token.startswith("<|") else gguf.TokenType.NORMAL for token in tokens]
    writer.add_token_types(types[: len(tokens) - len(defined)] + [gguf.TokenType.USER_DEFINED] * len(defined))
    if merges:
        writer.add_token_merges(merges)
    writer.add_bos_token_id(tokens.index("<|im_start|>"))
    writer.add_eos_token_id(tokens.index(END))
    writer.add_pad_token_id(tokens.index(END))
    if chat:
        writer.add_chat_template(CHAT)
    for key, value in (more or {}).items():
        writer.add_key_value(key, value, _VALUE_TYPES[type(value)])
    turns = cycle(kinds)
    for name, array in (arrays or weights(family, tokens=len(tokens))).items():
        _add(writer, name, array, vectors if array.ndim == 1 else next(turns))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def converted(file: Path, form: WeightsForm = "exact") -> Path:
    """Convert a file in this process; return the folder."""
    scratch = file.with_suffix(f".{form}")
    scratch.mkdir(exist_ok=True)
    conversions().mkdir(parents=True, exist_ok=True)
    convert_here(file, scratch, form)
    folder = converted_folder(file, form)
    assert folder is not None
    return folder


def head_size(family: str) -> int:
    """Return the size of a head, which need not divide the width in qwen3."""
    return 32 if family == "qwen3" else EMBEDDING // HEADS


def vocabulary(
    merges: Sequence[str] = ("h e", "l l", "Ġ t"), defined: Sequence[str] = (), words: Sequence[str] = ()
) -> list[str]:
    """Return each byte as byte-level BPE writes it, then merges, words, a chat's special tokens, and defined ones."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in plain]
    letters = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    merged = [merge.replace(" ", "") for merge in merges]
    return [*(letters[byte] for byte in range(256)), *merged, *words, "<|im_start|>", END, *defined]


def weights(family: str, seed: int = 0, tokens: int = 261) -> dict[str, np.ndarray[Any, Any]]:
    random, head = np.random.default_rng(seed), head_size(family)

    def matrix(rows: int, columns: int = EMBEDDING) -> np.ndarray[Any, Any]:
        return random.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)

    ones = np.ones(EMBEDDING, np.float32)
    arrays = {"token_embd.weight": matrix(tokens), "output_norm.weight": ones}
    for layer in range(LAYERS):
        rows = {"attn_q": HEADS * head, "attn_k": KV_HEADS * head, "attn_v": KV_HEADS * head}
        block = {f"{name}_norm.weight": ones for name in ("attn", "ffn")}
        block |= {f"{name}.weight": matrix(size) for name, size in rows.items()}
        block |= {f"ffn_{name}.weight": matrix(FEED_FORWARD) for name in ("gate", "up")}
        block["attn_output.weight"] = matrix(EMBEDDING, HEADS * head)
        block["ffn_down.weight"] = matrix(EMBEDDING, FEED_FORWARD)
        if family == "qwen2":
            block |= {f"{name}.bias": np.full(size, 0.01, np.float32) for name, size in rows.items()}
        if family == "qwen3":
            block |= {f"attn_{which}_norm.weight": np.ones(head, np.float32) for which in "qk"}
        arrays |= {f"blk.{layer}.{name}": array for name, array in block.items()}
    return arrays


def read(file: Path) -> dict[str, np.ndarray[Any, Any]]:
    tensors = gguf.GGUFReader(file).tensors
    return {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in tensors}


def _add(writer: gguf.GGUFWriter, name: str, array: np.ndarray[Any, Any], kind: str) -> None:
    if kind == "F32":
        writer.add_tensor(name, array)
        return
    type_ = gguf.GGMLQuantizationType[kind]
    try:
        rows = gguf.quants.quantize(array, type_)
    except NotImplementedError:  # the package unpacks these only: any bits do, with modest scales
        rows = np.frombuffer(_blocks(array, type_), np.uint8).reshape(array.shape[0], -1)
    writer.add_tensor(name, rows, raw_dtype=type_)


_SCALES = {  # places of scales in a block, in bytes from its start; all are f16
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ1_M": (),
}  # fmt: skip


def _blocks(array: np.ndarray[Any, Any], type_: gguf.GGMLQuantizationType) -> bytes:
    weights_, size = gguf.GGML_QUANT_SIZES[type_]
    raw = np.random.default_rng(array.size).integers(0, 256, (array.size // weights_, size), np.uint8)
    scale = np.frombuffer(np.float16(1e-4 if type_.name.endswith("_K") else 2e-3).tobytes(), np.uint8)
    for place in _SCALES.get(type_.name, (0,)):
        raw[:, place : place + 2] = scale
    if type_.name == "IQ1_M":  # its scale is in the upper halves of four bytes
        for index, byte in enumerate(scale.repeat(2)):
            raw[:, 49 + 2 * index] = raw[:, 49 + 2 * index] & 15 | (byte >> 4 if index % 2 else byte & 15) << 4
    if type_.name in ("MXFP4", "NVFP4"):
        raw[:, : size - weights_ // 2] = 120 if type_.name == "MXFP4" else 32  # exponents of two, or small floats
    return raw.tobytes()
