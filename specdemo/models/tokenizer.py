"""The tokenizer that openvino-genai's reader writes for a GGUF file, put right in its IR.

As openvino-genai 2026.4 writes it, it

- cuts a text to its last 8,192 tokens, whatever the model's context, so that the beginning of a prompt is lost;
- splits text by one of three rules, whichever of them the file names;
- adds no token at the beginning of a text, whatever the file says;
- decodes tokens that are user-defined, such as `<think>`, to nothing, like those of control.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_tokenizers
from openvino import opset13 as opset

from specdemo.errors import GGUFError
from specdemo.models.gguf import Header, read_array
from specdemo.models.gguf_keys import SPLITS, begins_with_token

_NO_LIMIT = np.int32(2**30)  # GenAI adds to it the tokens at the beginning, so 2**31 - 1 would overflow
_USER_DEFINED = 4  # among the types of tokens


def repair_tokenizer(folder: Path, file: Path, header: Header) -> None:
    def tokenizer(model: openvino.Model) -> None:
        remove_limit(model)
        _split(model, SPLITS[header.text("tokenizer.ggml.pre") or "default"])
        if begins_with_token(header):
            _begin(model, header.integer("tokenizer.ggml.bos_token_id") or 0)

    kinds = read_array(file, header.metadata.get("tokenizer.ggml.token_type"))
    shown = {id_ for id_, kind in enumerate(kinds) if kind == _USER_DEFINED}
    change(folder, "openvino_tokenizer", tokenizer)
    if shown:
        change(folder, "openvino_detokenizer", lambda model: _show(model, shown))


def change(folder: Path, stem: str, how: Callable[[openvino.Model], None]) -> None:
    """Change a network of a folder and store it; OpenVINO's tokenizers are among those it can read."""
    core = openvino.Core()
    core.add_extension(str(openvino_tokenizers._ext_path))
    model = core.read_model(folder / f"{stem}.xml")
    how(model)
    model.validate_nodes_and_infer_types()
    changed = folder / "changed"
    openvino.save_model(model, changed / f"{stem}.xml", compress_to_fp16=False)
    del model  # which keeps the file open
    for written in changed.iterdir():
        written.replace(folder / written.name)
    changed.rmdir()


def check_merges(file: Path, header: Header) -> None:
    """Check that every merge makes a token; the reader ends in "map::at" otherwise."""
    tokens = set(read_array(file, header.metadata.get("tokenizer.ggml.tokens")))
    for merge in read_array(file, header.metadata.get("tokenizer.ggml.merges")):
        left, _, right = merge.partition(b" ")
        if not {left, right, left + right} <= tokens:
            raise GGUFError(
                f"{header.file!r} is damaged: the merge {merge.decode(errors='replace')!r} of its tokenizer is not "
                "among its tokens; choose another file."
            )


def remove_limit(model: openvino.Model) -> None:
    """Let a tokenizer return as many tokens as the text has: the prompt is checked against the context afterwards."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Minimum" and node.input_value(1).get_node().get_type_name() == "Constant":
            node.input(1).replace_source_output(opset.constant(_NO_LIMIT).output(0))


def _split(model: openvino.Model, patterns: tuple[str, ...]) -> None:
    nodes = model.get_ordered_ops()
    first = next(node for node in nodes if node.get_type_name() == "RegexSplit")
    (merging,) = (node for node in nodes if node.get_type_name() == "BPETokenizer")
    outputs = [first.input_value(index) for index in range(6)]
    attributes = {"behaviour": "isolate", "invert": False, "max_splits": -1}
    for pattern in patterns:
        stored = opset.constant(np.frombuffer(pattern.encode(), np.uint8))
        outputs = _create("RegexSplit", [*outputs, stored.output(0)], attributes)
    for index in range(5):  # begins and ends of texts, begins and ends of parts, and their bytes
        merging.input(index).replace_source_output(outputs[index])


def _begin(model: openvino.Model, token: int) -> None:
    """Begin each text with a token, unless special tokens are not asked for.

    GenAI finds this operation for that, and the text's own segment by the subtraction of its truncation.
    """
    (dense,) = (node for node in model.get_ordered_ops() if node.get_type_name() == "RaggedToDense")
    length = dense.input_value(3).get_node().input_value(0).get_node()  # of each text: its end minus its beginning
    begin = [opset.constant(np.array(values, np.int32)).output(0) for values in (0, 1, [token])]
    segments = opset.constant(np.zeros(2, np.int32)).output(0)
    outputs = _create("CombineSegments", [*begin, *(dense.input_value(index) for index in range(3)), segments], {})
    for index in range(3):
        dense.input(index).replace_source_output(outputs[index])
    length.input(0).replace_source_output(outputs[1])
    length.input(1).replace_source_output(outputs[0])


def _show(model: openvino.Model, shown: set[int]) -> None:
    """Take tokens out of those that decode to nothing."""
    (decoding,) = (node for node in model.get_ordered_ops() if node.get_type_name() == "VocabDecoder")
    part = decoding.input_value(4).get_node()  # a slice, whose end GenAI changes to decode all tokens
    hidden = part.input_value(0).get_node().data
    kept = np.array([id_ for id_ in hidden.tolist() if id_ not in shown], hidden.dtype)
    part.input(0).replace_source_output(opset.constant(kept).output(0))


def _create(kind: str, inputs: list[Any], attributes: dict[str, Any]) -> list[Any]:
    return list(openvino_tokenizers._get_factory().create(kind, inputs, attributes).outputs())
