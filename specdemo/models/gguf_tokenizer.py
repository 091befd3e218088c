"""The tokenizer of a GGUF file, byte-level BPE, in the steps of OpenVINO's package of tokenizers.

GenAI's reader is no help: its tokenizer truncates a text to its last 8,192 tokens, splits text by one of three rules,
never adds a BOS token, uses tokens that no merge produces, and decodes tokens such as `<think>` to nothing.
"""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops
from openvino_tokenizers import _get_factory
from openvino_tokenizers.tokenizer_pipeline import (
    AddToken,
    BPETokenizationStep,
    CombineSegmentsStep,
    FuseStep,
    PaddingStep,
    RegexSplitStep,
    Sequence,
    SpecialTokensSplit,
    TokenizerPipeline,
    TruncationStep,
    UTF8ValidateStep,
    VocabDecoderStep,
)
from openvino_tokenizers.utils import (
    apply_unicode_to_bytes,
    change_inputs_type,
    change_outputs_type,
    create_string_constant_node,
)

from specdemo.errors import GGUFError, quoted
from specdemo.models.folder import NO_LIMIT
from specdemo.models.gguf_header import Header, read_array
from specdemo.models.gguf_keys import SPLITS, adds_bos, keeps_whole_words

_CONTROL, _USER_DEFINED = 3, 4  # types of tokens
_WORD_CACHE = 20_000  # as in GenAI's reader


def write_tokenizer(file: Path, header: Header, folder: Path) -> None:
    pipeline = TokenizerPipeline()
    pipeline.add_steps(_steps(file, header))
    model, detokenizer = pipeline.get_tokenizer_ov_subgraph(), pipeline.get_detokenizer_ov_subgraph()
    outputs = [model.output(name) for name in ("input_ids", "attention_mask")]
    tokenizer = openvino.Model(outputs, model.get_parameters(), "tokenizer")
    tokenizer.add_sinks(model.get_sinks())
    change_outputs_type(tokenizer, openvino.Type.i64)
    change_inputs_type(detokenizer, openvino.Type.i64)
    facts = {
        "bos_token_id": header.integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": header.integer("tokenizer.ggml.eos_token_id"),
        "pad_token_id": header.integer("tokenizer.ggml.padding_token_id"),
        "chat_template": header.text("tokenizer.chat_template"),
        "openvino_tokenizers_version": version("openvino-tokenizers"),  # without it GenAI always adds a BOS token
    }
    for name, network in (("openvino_tokenizer", tokenizer), ("openvino_detokenizer", detokenizer)):
        for key, value in facts.items():
            if value is not None:
                network.set_rt_info(value, key)
        openvino.save_model(network, folder / f"{name}.xml", compress_to_fp16=False)


def _steps(file: Path, header: Header) -> list[Any]:
    kinds = read_array(file, header.metadata.get("tokenizer.ggml.token_type"))
    texts, merges = (
        [text.decode(errors="replace") for text in read_array(file, header.metadata.get(f"tokenizer.ggml.{name}"))]
        for name in ("tokens", "merges")
    )
    special = [id_ for id_, kind in enumerate(kinds) if kind in (_CONTROL, _USER_DEFINED)]
    tokens = [apply_unicode_to_bytes(text, return_corrupted_tokens=True) for text in texts]
    for id_ in special:
        tokens[id_] = texts[id_].encode()
    pairs, reachable = _used_merges(header.file, texts, merges)
    merging = (_WordsFirst if keeps_whole_words(header) else BPETokenizationStep)(
        vocab=[token if text in reachable else b"" for text, token in zip(texts, tokens, strict=True)],
        merges=[tuple(map(apply_unicode_to_bytes, pair)) for pair in pairs],
        added_tokens={tokens[id_]: id_ for id_ in special},
        cache_capacity=_WORD_CACHE,
    )
    if isinstance(merging, _WordsFirst):
        merging.words = tokens
    bos = [AddToken(_token_id=header.integer("tokenizer.ggml.bos_token_id"))] if adds_bos(header) else []
    return [
        SpecialTokensSplit.from_string_iter(texts[id_] for id_ in special),
        *(
            RegexSplitStep(pattern, behaviour="isolate", mergeable=False)
            for pattern in SPLITS[header.text("tokenizer.ggml.pre") or "default"]
        ),
        merging,
        TruncationStep(NO_LIMIT),  # by which GenAI tells a text from the tokens that are added to it
        CombineSegmentsStep([*bos, Sequence()]),
        PaddingStep(_token_id=header.integer("tokenizer.ggml.padding_token_id"), pad_right=False),
        VocabDecoderStep(tokens, [id_ for id_, kind in enumerate(kinds) if kind == _CONTROL]),
        FuseStep(),
        UTF8ValidateStep(),
    ]


def _used_merges(file: str, tokens: list[str], merges: list[str]) -> tuple[list[tuple[str, str]], set[str]]:
    """Return the merges that can happen, and the tokens that they make from single characters: llama.cpp never uses
    the others.
    """
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    known = set(tokens)
    foreign = next((pair for pair in pairs if not known.issuperset((*pair, "".join(pair)))), None)
    if foreign is not None:
        raise GGUFError(
            f"{file!r} is damaged: the merge {quoted(' '.join(foreign))} of its tokenizer is not among its tokens; "
            "choose another file."
        )
    reachable = {token for token in tokens if len(token) == 1}
    before = 0
    while before < len(reachable):  # a single pass, if the merges are in training order
        before = len(reachable)
        reachable.update(left + right for left, right in pairs if left in reachable and right in reachable)
    return [pair for pair in pairs if reachable.issuperset(pair)], reachable


class _WordsFirst(BPETokenizationStep):  # type: ignore[misc]  # which has no types
    """Encodes a piece of text that is a token as that token, without merging."""

    words: list[bytes]

    def get_ov_subgraph(self, inputs: list[Any]) -> list[Any]:
        texts, pieces = inputs[:2], inputs[2:]
        zero, one, none = (ops.constant(np.int32(value)) for value in (0, 1, -1))
        ids = ops.constant(np.arange(len(self.words), dtype=np.int32))
        words = create_string_constant_node(self.words)
        (token_ids,) = _create("VocabEncoder", [*pieces, *words, ids.output(0), none.output(0)])
        is_token = ops.convert(ops.greater(token_ids, none), "i32")
        first = ops.range(zero, ops.gather(ops.shape_of(pieces[0], "i32"), zero, zero), one, "i32")
        # merge piece by piece, except the pieces that are tokens
        ends = ops.subtract(ops.add(first, one), is_token)
        merged = super().get_ov_subgraph([first.output(0), ends.output(0), *pieces])
        segments = ops.constant(np.zeros(2, np.int32)).output(0)
        tokens = [first.output(0), ops.add(first, is_token).output(0), token_ids]
        _, ends, joined, *_ = _create("CombineSegments", [*tokens, *merged, segments])
        offsets = ops.concat([ops.constant(np.zeros(1, np.int32)), ends], 0)
        return [*(ops.gather(offsets, text, zero).output(0) for text in texts), joined]


def _create(kind: str, inputs: list[Any]) -> list[Any]:
    return list(_get_factory().create(kind, inputs, {}).outputs())
