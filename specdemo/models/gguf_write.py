"""What a converted GGUF file needs besides its network: configuration files, and F16 in place of wider weights."""

import struct
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from specdemo.models.gguf import Header, Tensor, type_number, vocabulary_of

_WIDE = ("F32", "BF16")
_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_STEP = 2**24  # bytes converted at once


def configuration(header: Header) -> dict[str, Any]:
    """The model's `config.json`, with Hugging Face's keys; what the file does not say is left out."""
    metadata = header.metadata
    family = metadata["general.architecture"]
    heads, width = metadata.get(f"{family}.attention.head_count"), metadata.get(f"{family}.embedding_length")
    found = {
        "architectures": [_CLASSES[family]],
        "model_type": family,
        "hidden_size": width,
        "intermediate_size": metadata.get(f"{family}.feed_forward_length"),
        "num_hidden_layers": metadata.get(f"{family}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get(f"{family}.attention.head_count_kv", heads),
        "head_dim": metadata.get(f"{family}.attention.key_length", width // heads if width and heads else None),
        "max_position_embeddings": metadata.get(f"{family}.context_length"),
        "rms_norm_eps": metadata.get(f"{family}.attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.get(f"{family}.rope.freq_base"),
        "vocab_size": vocabulary_of(header),
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in header.tensors),
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
    }
    return {key: value for key, value in found.items() if value is not None}


def ends(header: Header) -> dict[str, Any]:
    """The model's `generation_config.json`: a turn can end with a different token than the text."""
    metadata = header.metadata
    named = (metadata.get(f"tokenizer.ggml.{which}_token_id") for which in ("eos", "eot", "eom"))
    found = {
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": sorted({id_ for id_ in named if id_ is not None}) or None,
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }
    return {key: value for key, value in found.items() if value is not None}


def with_halves(path: Path, header: Header, copy: Path) -> bool:
    """Write a copy of a file whose F32 and BF16 matrices are F16, if it has any; False where there are none.

    The reader of openvino-genai 2026.4 supports F32 vectors but not F32 matrices, and fails on BF16.
    """
    if not any(_halved(tensor) for tensor in header.tensors):
        return False
    content = np.memmap(path, np.uint8, "r")
    with copy.open("wb") as target:
        target.write(content[: header.table].tobytes())
        offset = 0
        for tensor in header.tensors:
            target.write(_row(tensor, offset))
            offset += -(-_size(tensor) // header.alignment) * header.alignment
        for tensor in header.tensors:
            target.write(bytes(-target.tell() % header.alignment))
            begin = header.data + tensor.offset
            weights = content[begin : begin + tensor.bytes]
            for place in range(0, len(weights), _STEP):
                part = weights[place : place + _STEP]
                target.write((_halves(part, tensor.type) if _halved(tensor) else part).tobytes())
        target.write(bytes(-target.tell() % header.alignment))
    return True


def _halved(tensor: Tensor) -> bool:
    return tensor.type in _WIDE and len(tensor.shape) > 1


def _size(tensor: Tensor) -> int:
    return 2 * prod(tensor.shape) if _halved(tensor) else tensor.bytes


def _row(tensor: Tensor, offset: int) -> bytes:
    """The tensor's row in the table, in the file's format."""
    name = tensor.name.encode()
    form = f"<Q{len(name)}sI{len(tensor.shape)}QIQ"
    kind = type_number("F16" if _halved(tensor) else tensor.type)
    return struct.pack(form, len(name), name, len(tensor.shape), *tensor.shape, kind, offset)


def _halves(part: np.ndarray[Any, np.dtype[np.uint8]], kind: str) -> np.ndarray[Any, np.dtype[np.float16]]:
    if kind == "BF16":  # the upper half of an F32
        return (part.view("<u2").astype("<u4") << 16).view("<f4").astype("<f2")
    return part.view("<f4").astype("<f2")
