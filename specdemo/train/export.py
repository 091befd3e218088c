"""A trained draft as a folder that every engine takes: IR, configuration, tokenizer.

The IR is written operation by operation rather than traced: nothing but OpenVINO is needed, the cache is model state
from the beginning, and GenAI recognises the parts of a head by their names (`hidden_states`, `midlayer`,
`d2t`). Matrices are int8 with a scale for each row; a matrix used twice is stored once.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.op.util import Variable, VariableInfo

from specdemo.models.graph import join_products, seen_layers
from specdemo.train.network import Array, Ids, Network, Shape
from specdemo.train.start import Start

NEVER = -1e4  # logit of tokens outside the draft's vocabulary


class Graph:
    """A network in the making: its inputs, its cache, and the parts that all decoders have."""

    def __init__(self, shape: Shape, frequencies: Array) -> None:
        """Inputs, rotary embedding and mask."""
        self.shape, self.sinks = shape, list[ov.Node]()
        self.ids = parameter("input_ids", ov.Type.i64, 2)
        self.mask = parameter("attention_mask", ov.Type.i64, 2)
        self.positions = parameter("position_ids", ov.Type.i64, 2)
        self.beams = parameter("beam_idx", ov.Type.i32, 1)
        self.parameters = [self.ids, self.mask, self.positions, self.beams]
        self.batch = _size(self.ids, 0)
        self.cos, self.sin = self._rotary(frequencies)
        self.allowed = self._allowed()

    def _rotary(self, frequencies: Array) -> tuple[ov.Node, ov.Node]:
        """Cosines and sines, [batch, 1, tokens, head_dim]."""
        positions = ops.convert(ops.unsqueeze(self.positions, _ints(1)), "f32")
        angles = ops.matmul(ops.constant(frequencies.reshape(1, -1, 1)), positions, False, False)
        angles = ops.transpose(angles, _ints([0, 2, 1]))
        both = ops.concat([angles, angles], -1)
        return ops.unsqueeze(ops.cos(both), _ints(1)), ops.unsqueeze(ops.sin(both), _ints(1))

    def _allowed(self) -> ov.Node:
        """0 where a token may look, minus infinity elsewhere, [batch, 1, tokens, tokens before and now]."""
        length, tokens = ops.squeeze(_size(self.mask, 1), _ints(0)), ops.squeeze(_size(self.ids, 1), _ints(0))
        columns = ops.range(_ints(0), length, _ints(1), "i64")
        rows = ops.add(ops.range(_ints(0), tokens, _ints(1), "i64"), ops.subtract(length, tokens))
        causal = ops.less_equal(ops.unsqueeze(columns, _ints(0)), ops.unsqueeze(rows, _ints(1)))
        real = ops.greater(ops.unsqueeze(self.mask, _ints([1, 2])), _ints(0))
        both = ops.logical_and(ops.unsqueeze(causal, _ints([0, 1])), real)
        return ops.select(both, _floats(0.0), _floats(-np.inf))

    def product(self, x: ov.Node, matrix: ov.Node, name: str) -> ov.Node:
        """`x` times the transposed matrix."""
        node = ops.matmul(x, matrix, False, True)
        node.set_friendly_name(name)
        return node

    def norm(self, x: ov.Node, scales: Array) -> ov.Node:
        """Root-mean-square norm."""
        mean = ops.reduce_mean(ops.power(x, _floats(2.0)), _ints([-1]), True)
        inverse = ops.divide(_floats(1.0), ops.sqrt(ops.add(mean, _floats(self.shape.eps))))
        return ops.multiply(_floats(scales.reshape(1, 1, -1)), ops.multiply(x, inverse))

    def layer(self, residual: ov.Node, read: ov.Node, weights: Mapping[str, Array], name: str) -> ov.Node:
        """A layer whose attention reads `read`; gives the residual stream, named after the layer."""
        shape, matrices = self.shape, {one: int8(weights[f"{one}.weight"]) for one in _MATRICES}

        def heads(which: str, count: int) -> ov.Node:
            product = self.product(read, matrices[which], f"{name}.{which}")
            apart = ops.reshape(product, _ints([0, 0, count, shape.head_dim]), True)
            return ops.transpose(apart, _ints([0, 2, 1, 3]))

        queries = self._turned(heads("q", shape.heads))
        keys = self._cached(self._turned(heads("k", shape.kv_heads)), f"{name}.key")
        values = self._cached(heads("v", shape.kv_heads), f"{name}.value")
        attended = ops.scaled_dot_product_attention(queries, self._shared(keys), self._shared(values), self.allowed)
        joined = ops.reshape(
            ops.transpose(attended, _ints([0, 2, 1, 3])), _ints([0, 0, shape.heads * shape.head_dim]), True
        )
        middle = ops.add(residual, self.product(joined, matrices["o"], f"{name}.o"))
        normed = self.norm(middle, weights["post_norm.weight"])
        gate = ops.swish(self.product(normed, matrices["gate"], f"{name}.gate"))
        gated = ops.multiply(gate, self.product(normed, matrices["up"], f"{name}.up"))
        end = ops.add(middle, self.product(gated, matrices["down"], f"{name}.down"))
        end.set_friendly_name(f"{name}/residual")
        return end

    def _turned(self, x: ov.Node) -> ov.Node:
        first, second = ops.split(x, _ints(3), 2).outputs()
        rotated = ops.concat([ops.multiply(second, _floats(-1.0)), first], -1)
        return ops.add(ops.multiply(x, self.cos), ops.multiply(rotated, self.sin))

    def _cached(self, new: ov.Node, name: str) -> ov.Node:
        """What the cache holds, and the new; both stay in it."""
        sizes = [_ints([size]) for size in (self.shape.kv_heads, 0, self.shape.head_dim)]
        empty = ops.broadcast(_floats(0.0), ops.concat([self.batch, *sizes], 0))
        info = VariableInfo()
        info.variable_id, info.data_type = name, ov.Type.f32
        info.data_shape = ov.PartialShape([-1, self.shape.kv_heads, -1, self.shape.head_dim])
        variable = Variable(info)
        read = ops.read_value(empty, variable)
        whole = ops.concat([ops.gather(read, self.beams, _ints(0)), new], 2)
        self.sinks.append(ops.assign(whole, variable))
        return whole

    def _shared(self, x: ov.Node) -> ov.Node:
        """Keys or values once for every head that shares them."""
        share = self.shape.heads // self.shape.kv_heads
        if share == 1:
            return x
        apart = ops.unsqueeze(x, _ints(2))
        kv_heads, repeats, width = (_ints([size]) for size in (self.shape.kv_heads, share, self.shape.head_dim))
        wide = ops.broadcast(apart, ops.concat([self.batch, kv_heads, repeats, _size(x, 2), width], 0))
        return ops.reshape(wide, _ints([0, self.shape.heads, -1, self.shape.head_dim]), True)

    def model(self, results: Mapping[str, ov.Node], name: str) -> ov.Model:
        """The network with these outputs."""
        outputs = []
        for output, node in results.items():
            result = ops.result(node)
            result.output(0).set_names({output})
            result.set_friendly_name(output)
            outputs.append(result)
        return ov.Model(outputs, self.sinks, self.parameters, name)


_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


def int8(matrix: Array) -> ov.Node:
    """A matrix stored as int8, with a scale a row."""
    scales = np.maximum(np.abs(matrix).max(1, keepdims=True) / 127, 1e-6).astype(np.float16)
    whole = np.clip(np.rint(matrix / scales.astype(np.float32)), -127, 127).astype(np.int8)
    half = ops.multiply(ops.convert(ops.constant(whole), "f16"), ops.constant(scales))
    return ops.convert(half, "f32")


def parameter(name: str, kind: ov.Type, rank: int) -> Any:
    """An input, of dynamic sizes."""
    node = ops.parameter([-1] * rank, kind)
    node.set_friendly_name(name)  # paged attention is looked for by it
    node.output(0).set_names({name})
    return node


def _size(node: ov.Node, axis: int) -> ov.Node:
    """A dimension's size, [1]."""
    return ops.gather(ops.shape_of(node, "i64"), _ints([axis]), _ints(0))


def _ints(values: int | list[int]) -> ov.Node:
    return ops.constant(np.array(values, np.int64))


def _floats(values: float | Array) -> ov.Node:
    return ops.constant(np.array(values, np.float32))


Weights = Mapping[str, Array]
COPIED = ("*tokenizer*", "generation_config.json", "chat_template.*")


class Vocabulary:
    """The draft's vocabulary inside a network whose ids and logits are the target's."""

    def __init__(self, start: Start, vocabulary: Ids, size: int) -> None:
        """Store the rows once, if what is read and what is written share them."""
        places = np.full(size, len(vocabulary), np.int32)
        places[vocabulary] = np.arange(len(vocabulary))
        self.places, self.size = ops.constant(places), len(vocabulary)
        self.embedding = int8(start.embedding)
        shared = np.array_equal(start.embedding[:-1], start.rows)
        unknown = np.zeros((1, start.rows.shape[1]), np.float32)
        self.rows = self.embedding if shared else int8(np.vstack([start.rows, unknown]))

    def read(self, ids: ov.Node) -> ov.Node:
        """Rows of ids, [batch, tokens, hidden]."""
        zero = ops.constant(np.int32(0))
        return ops.gather(self.embedding, ops.gather(self.places, ids, zero), zero)

    def small(self, graph: Graph, states: ov.Node) -> ov.Node:
        """Logits of the vocabulary, and of the unknown token, which is never chosen."""
        logits = graph.product(states, self.rows, "lm_head")
        unknown = np.zeros(self.size + 1, np.float32)
        unknown[-1] = 2 * NEVER
        return ops.maximum(ops.add(logits, ops.constant(unknown)), ops.constant(np.float32(NEVER)))

    def whole(self, graph: Graph, states: ov.Node) -> ov.Node:
        """Logits of all tokens of the target."""
        return ops.gather(self.small(graph, states), self.places, ops.constant(np.int32(-1)))


def draft_model(start: Start, weights: Weights, vocabulary: Ids, size: int) -> ov.Model:
    """A draft of its own, for a vocabulary of so many tokens.

    Ids become places in the draft's vocabulary when they come in, and its logits become those of all tokens when
    they go out, so from outside its vocabulary is the target's.
    """
    graph, tables = Graph(start.shape, start.frequencies), Vocabulary(start, vocabulary, size)
    x = tables.read(graph.ids)
    for index in range(len(start.layers)):
        own = _under(weights, f"layers.{index}.")
        x = graph.layer(x, graph.norm(x, own["input_norm.weight"]), own, f"model.layers.{index}")
    return graph.model({"logits": tables.whole(graph, graph.norm(x, weights["norm.weight"]))}, "draft")


def head_model(start: Start, weights: Weights, vocabulary: Ids, size: int) -> ov.Model:
    """An EAGLE-3 head for a target with so many tokens.

    Its logits are those of all tokens of the target, though it writes only those of its vocabulary: GenAI applies a
    repetition penalty to tokens of the prompt by their ids, which must not lie beyond the logits. So `d2t` is zero.
    """
    graph, tables = Graph(start.shape, start.frequencies), Vocabulary(start, vocabulary, size)
    hidden = parameter("hidden_states", ov.Type.f32, 3)
    graph.parameters.insert(1, hidden)
    scales = ops.constant(weights["scales"].reshape(1, -1))
    state = graph.product(hidden, ops.multiply(int8(weights["fc.weight"]), scales), "fc")
    read = graph.norm(state, weights["hidden_norm.weight"])
    x = ops.add(_decoy(), tables.read(graph.ids))
    for index, scale in enumerate(weights["sizes"]):
        own, last = _under(weights, f"layers.{index}."), index == len(start.layers) - 1
        join = int8(weights[f"joins.{index}.weight"] * scale)
        x = ops.add(x, graph.product(read, join, f"join.{index}"))
        name = "midlayer" if last else f"model.layers.{index}"
        x = graph.layer(x, graph.norm(x, own["input_norm.weight"]), own, name)
    logits = tables.whole(graph, graph.norm(x, weights["norm.weight"]))
    to_target = ops.constant(np.zeros(size, np.int64))
    to_target.set_friendly_name("d2t")
    model = graph.model({"logits": logits, "d2t": to_target}, "eagle3")
    model.set_rt_info(True, "eagle3_mode")  # by which GenAI recognises a head
    return model


def _decoy() -> ov.Node:
    """Zero, whatever table stands in it, [1, 1].

    GenAI puts the target's embeddings in the place of the first large table that a head looks up; this head has rows
    of its own, for its own tokens, so it offers another table.
    """
    table = ops.broadcast(ops.constant(np.float32(0)), ops.constant(np.array([2048, 1], np.int64)))
    row = ops.gather(table, ops.constant(np.array([0], np.int64)), ops.constant(np.int32(0)))
    return ops.multiply(row, ops.constant(np.float32(0)))


def config(network: Network, target: Mapping[str, Any], layers: int, eagle3: bool) -> dict[str, Any]:
    """What the application and GenAI read of a model's `config.json`."""
    shape = network.shape
    theta = float(network.frequencies[-1]) ** (-shape.head_dim / max(1, shape.head_dim - 2))
    common = {name: target[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if name in target}
    special = {"target_layers": list(seen_layers(shape.layers))} if eagle3 else {}
    return {
        "architectures": ["LlamaForCausalLMEagle3" if eagle3 else "LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": int(target.get("max_position_embeddings", 2048)),
        "rms_norm_eps": shape.eps,
        "rope_theta": round(theta, 3),
        "tie_word_embeddings": False,
        **special,
        **common,
    }


def save(folder: Path, model: ov.Model, settings: Mapping[str, Any], target: Path, tokenizer: bool) -> None:
    """Write a whole folder, or nothing: it gathers beside its place."""
    scratch = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    join_products(model)
    ov.save_model(model, scratch / "openvino_model.xml", compress_to_fp16=False)
    (scratch / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    for pattern in COPIED if tokenizer else ():
        for file in target.glob(pattern):
            shutil.copyfile(file, scratch / file.name)
    shutil.rmtree(folder, ignore_errors=True)
    scratch.rename(folder)


def _under(weights: Weights, prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
