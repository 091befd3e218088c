"""Conversion of a GGUF file to a folder of OpenVINO IR with a tokenizer and a configuration."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openvino

from specdemo.errors import FetchError
from specdemo.models.folder import ROUGH_HEAD, inspect_folder
from specdemo.models.gguf import check_readable, vocabulary_of
from specdemo.models.gguf_header import Header, read_header
from specdemo.models.gguf_keys import head_size
from specdemo.models.gguf_network import build, build_rough_head
from specdemo.models.gguf_tokenizer import write_tokenizer
from specdemo.models.gguf_weights import Weights
from specdemo.settings import WeightsForm

# Shares of the time, with 1.5 billion weights in Q4_K_M; the rest is the tokenizer's.
_PACKING_SHARE, _NETWORK_SHARE = 0.6, 0.75


def store(path: Path, work: Path, form: WeightsForm, report: Callable[[float], None] = lambda _: None) -> None:
    header = read_header(path)
    check_readable(header)
    work.mkdir()
    try:
        weights = Weights(path, header, form, lambda share: report(_PACKING_SHARE * share))
        openvino.save_model(build(header, weights), work / "openvino_model.xml", compress_to_fp16=False)
        if (rough := build_rough_head(header, weights)) is not None:
            openvino.save_model(rough, work / ROUGH_HEAD, compress_to_fp16=False)
        report(_NETWORK_SHARE)
        write_tokenizer(path, header, work)
    except RuntimeError as error:  # OpenVINO's, such as shapes that do not fit each other
        raise FetchError.of(error, f"{path.name!r} cannot be converted", "choose another file") from error
    for name, content in (("config", configuration(header)), ("generation_config", generation_config(header))):
        (work / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    inspect_folder(work)


def configuration(header: Header) -> dict[str, Any]:
    family, integer = header.family, header.integer
    heads, width = integer(f"{family}.attention.head_count"), integer(f"{family}.embedding_length")
    values = {
        "_name_or_path": header.file,
        "model_type": family,
        "hidden_size": width,
        "num_hidden_layers": integer(f"{family}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": integer(f"{family}.attention.head_count_kv") or heads,
        "head_dim": head_size(header) or None,
        "max_position_embeddings": integer(f"{family}.context_length"),
        "vocab_size": vocabulary_of(header),
    }
    return {key: value for key, value in values.items() if value is not None}


def generation_config(header: Header) -> dict[str, Any]:
    """Return the model's `generation_config.json`. Turns of a chat can end with a different token than texts."""
    integer = header.integer
    ends = (integer(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    values = {
        "bos_token_id": integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": sorted({id_ for id_ in ends if id_ is not None}) or None,
        "pad_token_id": integer("tokenizer.ggml.padding_token_id"),
    }
    return {key: value for key, value in values.items() if value is not None}
