"""The tokenizer of a GGUF file in OpenVINO's operations: that of openvino-genai's reader, repaired.

The reader gets the file's metadata alone, with one small tensor, so it loads no weights. Its tokenizer

- truncates a text to its last 8,192 tokens, regardless of the model's context, and loses the start of a prompt;
- splits text by one of only three rules, and never adds a BOS token;
- uses tokens that no merge produces, anywhere in a word, and merges words that are tokens themselves;
- decodes user-defined tokens, such as `<think>`, to nothing, as if they were control tokens.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
import openvino_tokenizers
from openvino import opset13 as opset

from specdemo.models.folder import NO_LIMIT
from specdemo.models.gguf_header import Header, read_array
from specdemo.models.gguf_keys import SPLITS, adds_bos, keeps_whole_words

_CONTROL, _USER_DEFINED = 3, 4  # types of tokens


def write_tokenizer(file: Path, header: Header, folder: Path) -> None:
    kinds = read_array(file, header.metadata.get("tokenizer.ggml.token_type"))
    visible = {id_ for id_, kind in enumerate(kinds) if kind == _USER_DEFINED}
    _write_with_reader(file, header, folder)

    def tokenizer(model: openvino.Model) -> None:
        _remove_limit(model)
        _replace_splits(model, SPLITS[header.text("tokenizer.ggml.pre") or "default"])
        if keeps_whole_words(header):
            _keep_whole_words(model)
        _remove_unmerged(model, file, header, kinds)
        if adds_bos(header):
            _add_bos(model, header.integer("tokenizer.ggml.bos_token_id") or 0)

    _rewrite(folder, "openvino_tokenizer", tokenizer)
    if visible:
        _rewrite(folder, "openvino_detokenizer", lambda model: _make_visible(model, visible))


def _write_with_reader(file: Path, header: Header, folder: Path) -> None:
    """Write the reader's tokenizer and detokenizer next to a file of these metadata, which is removed again."""
    with file.open("rb") as source:
        start = bytearray(source.read(header.table))
    start[8:16] = struct.pack("<Q", 1)  # the number of tensors
    name = b"token_embd.weight"
    start += struct.pack(f"<Q{len(name)}sIQIQ", len(name), name, 1, 32, 0, 0)  # 32 weights in F32
    start += bytes(-len(start) % header.alignment + 32 * 4)
    alone = folder / "tokenizer.gguf"
    alone.write_bytes(start)
    openvino_genai.Tokenizer(alone, enable_save_ov_model=True)
    alone.unlink()


def _rewrite(folder: Path, stem: str, edit: Callable[[openvino.Model], None]) -> None:
    """Edit a network or tokenizer of a folder in place."""
    core = openvino.Core()
    core.add_extension(str(openvino_tokenizers._ext_path))
    model = core.read_model(folder / f"{stem}.xml")
    edit(model)
    model.validate_nodes_and_infer_types()
    output = folder / "changed"
    openvino.save_model(model, output / f"{stem}.xml", compress_to_fp16=False)
    del model  # it keeps the file open
    for file in output.iterdir():
        file.replace(folder / file.name)
    output.rmdir()


def _remove_limit(model: openvino.Model) -> None:
    """Return all tokens of a text; whether a prompt fits the context is checked later."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Minimum" and node.input_value(1).get_node().get_type_name() == "Constant":
            node.input(1).replace_source_output(opset.constant(np.int32(NO_LIMIT)).output(0))


def _replace_splits(model: openvino.Model, patterns: tuple[str, ...]) -> None:
    first = next(node for node in model.get_ordered_ops() if node.get_type_name() == "RegexSplit")
    merging = _merging(model)
    outputs = [first.input_value(index) for index in range(6)]
    attributes = {"behaviour": "isolate", "invert": False, "max_splits": -1}
    for pattern in patterns:
        stored = opset.constant(np.frombuffer(pattern.encode(), np.uint8))
        outputs = _create("RegexSplit", [*outputs, stored.output(0)], attributes)
    for index in range(5):  # begins and ends of texts, begins and ends of parts, and their bytes
        merging.input(index).replace_source_output(outputs[index])


def _keep_whole_words(model: openvino.Model) -> None:
    """Encode a piece of text that is a token as that token, without merging."""
    merging = _merging(model)
    texts, pieces, words = (
        [merging.input_value(index) for index in indexes] for indexes in (range(2), range(2, 5), range(5, 8))
    )
    readers = [list(merging.output(index).get_target_inputs()) for index in range(3)]
    zero, one, none = (opset.constant(np.int32(value)) for value in (0, 1, -1))
    ids = opset.constant(np.arange(words[0].get_shape()[0], dtype=np.int32))
    (token_ids,) = _create("VocabEncoder", [*pieces, *words, ids.output(0), none.output(0)], {})
    is_token = opset.convert(opset.greater(token_ids, none), "i32")
    number = opset.gather(opset.shape_of(pieces[0], "i32"), zero, zero)
    first = opset.range(zero, number, one, "i32")
    # merge piece by piece, except the pieces that are tokens
    merging.input(0).replace_source_output(first.output(0))
    merging.input(1).replace_source_output(opset.subtract(opset.add(first, one), is_token).output(0))
    merged = merging.output(0), opset.add(merging.output(1), zero).output(0), merging.output(2)
    segments = opset.constant(np.zeros(2, np.int32)).output(0)
    parts = [first.output(0), opset.add(first, is_token).output(0), token_ids, *merged, segments]
    _, ends, joined, *_ = _create("CombineSegments", parts, {})
    offsets = opset.concat([opset.constant(np.zeros(1, np.int32)), ends], 0)
    outputs = [*(opset.gather(offsets, text, zero).output(0) for text in texts), joined]
    for output, inputs in zip(outputs, readers, strict=True):
        _replace(inputs, output)


def _remove_unmerged(model: openvino.Model, file: Path, header: Header, kinds: Sequence[int]) -> None:
    """Disable tokens that merges cannot build from single characters, and their merges: llama.cpp never uses them."""
    tokens, merges = (
        [text.decode(errors="replace") for text in read_array(file, header.metadata.get(f"tokenizer.ggml.{name}"))]
        for name in ("tokens", "merges")
    )
    reachable, is_used = {token for token in tokens if len(token) == 1}, np.zeros(len(merges), bool)
    pairs = [merge.split(" ", 1) for merge in merges]
    before = 0
    while before < len(reachable):  # a single pass, if the merges are in training order
        before = len(reachable)
        for index, (left, right) in enumerate(pairs):
            if left in reachable and right in reachable:
                is_used[index] = True
                reachable.add(left + right)
    unmerged = [
        id_
        for id_, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if token not in reachable and kind not in (_CONTROL, _USER_DEFINED)  # texts are split at these before merging
    ]
    merging = _merging(model)
    begins, ends = (np.array(merging.input_value(index).get_node().data) for index in (5, 6))
    ends[unmerged] = begins[unmerged]
    merging.input(6).replace_source_output(opset.constant(ends).output(0))
    for index in (8, 9, 11, 12):  # begins and ends of both sides of merges
        used = merging.input_value(index).get_node().data[is_used]
        merging.input(index).replace_source_output(opset.constant(used).output(0))


def _replace(readers: Iterable[Any], output: Any) -> None:
    for reader in readers:
        reader.replace_source_output(output)


def _merging(model: openvino.Model) -> Any:
    return next(node for node in model.get_ordered_ops() if node.get_type_name() == "BPETokenizer")


def _add_bos(model: openvino.Model, token: int) -> None:
    """Start each text with a token, added by the operation that GenAI looks for to switch special tokens off."""
    (dense,) = (node for node in model.get_ordered_ops() if node.get_type_name() == "RaggedToDense")
    length = dense.input_value(3).get_node().input_value(0).get_node()  # of each text: its end minus its beginning
    first = [opset.constant(np.array(values, np.int32)).output(0) for values in (0, 1, [token])]
    segments = opset.constant(np.zeros(2, np.int32)).output(0)
    outputs = _create("CombineSegments", [*first, *(dense.input_value(index) for index in range(3)), segments], {})
    for index in range(3):
        dense.input(index).replace_source_output(outputs[index])
    length.input(0).replace_source_output(outputs[1])
    length.input(1).replace_source_output(outputs[0])


def _make_visible(model: openvino.Model, visible: set[int]) -> None:
    """Decode these tokens to their text instead of to nothing."""
    (decoding,) = (node for node in model.get_ordered_ops() if node.get_type_name() == "VocabDecoder")
    part = decoding.input_value(4).get_node()  # a slice, whose end GenAI changes to decode all tokens
    hidden = part.input_value(0).get_node().data
    still_hidden = np.array([id_ for id_ in hidden.tolist() if id_ not in visible], hidden.dtype)
    part.input(0).replace_source_output(opset.constant(still_hidden).output(0))


def _create(kind: str, inputs: list[Any], attributes: dict[str, Any]) -> list[Any]:
    return list(openvino_tokenizers._get_factory().create(kind, inputs, attributes).outputs())
