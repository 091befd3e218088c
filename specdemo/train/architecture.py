"""The two kinds of draft, built like the target's layers: PyTorch modules to train, and OpenVINO IR to run.

A standalone draft reads tokens. An EAGLE-3 head reads each token with the target's hidden states at the previous
position: three of them or, where the target has not read the token yet, the head's own output. Both choose only among
the most frequent tokens; rows for others would cost time at every step and are seldom right.

The IR is built operation by operation instead of being traced: this needs only OpenVINO, the cache is stateful from
the start, and GenAI recognises the parts of a head by name (`hidden_states`, `midlayer`, `d2t`). Matrices are int8
with one scale per row; a matrix used twice is stored once. The folder contains what every engine needs: IR,
configuration and tokenizer.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as ops
from openvino.op.util import Variable, VariableInfo
from torch import Tensor, nn
from torch.nn import functional

from specdemo.models.graph import join_products, seen_layers
from specdemo.models.machine import instruction_sets
from specdemo.train.network import Array, Ids, Network, Shape, Start

PRODUCTS = torch.bfloat16 if {"AVX-512 BF16", "AMX BF16"} & {*instruction_sets()} else torch.float32
"""Dtype of large matrix products: ten times as fast with bfloat16 instructions, slower without them."""
DROPOUT = 0.1  # on each residual branch: a short text is repeated many times, and would be memorised


def products() -> torch.autocast:
    """Return a context in which modules multiply in `PRODUCTS`."""
    return torch.autocast("cpu", torch.bfloat16, enabled=PRODUCTS is torch.bfloat16)


class Norm(nn.Module):
    """RMS norm."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [..., width]."""
        return functional.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


class Layer(nn.Module):
    """A Llama decoder layer."""

    def __init__(self, shape: Shape, frequencies: Array) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        inner, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.input_norm = Norm(shape.hidden, shape.eps)
        self.q = nn.Linear(shape.hidden, inner, bias=False)
        self.k = nn.Linear(shape.hidden, kv, bias=False)
        self.v = nn.Linear(shape.hidden, kv, bias=False)
        self.o = nn.Linear(inner, shape.hidden, bias=False)
        self.post_norm = Norm(shape.hidden, shape.eps)
        self.gate = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down = nn.Linear(shape.intermediate, shape.hidden, bias=False)
        self.drop = nn.Dropout(DROPOUT)
        self.frequencies: Tensor
        self.register_buffer("frequencies", torch.from_numpy(frequencies.copy()), persistent=False)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project to queries, keys and values, [batch, heads, tokens, head_dim], repeating shared keys and values."""
        batch, tokens, _ = x.shape
        angles = torch.arange(tokens)[:, None] * self.frequencies
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

        def split(product: Tensor, heads: int) -> Tensor:
            return product.view(batch, tokens, heads, self.head_dim).transpose(1, 2)

        def turned(each: Tensor) -> Tensor:
            first, second = each.float().chunk(2, dim=-1)
            return (each * cos + torch.cat([-second, first], dim=-1) * sin).to(each.dtype)

        share = self.heads // self.kv_heads
        queries = turned(split(self.q(x), self.heads))
        keys = turned(split(self.k(x), self.kv_heads)).repeat_interleave(share, dim=1)
        return queries, keys, split(self.v(x), self.kv_heads).repeat_interleave(share, dim=1)

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Return the residual stream after the layer; `attended` is [batch, heads, tokens, head_dim]."""
        batch, _, tokens, _ = attended.shape
        x = residual + self.drop(self.o(attended.transpose(1, 2).reshape(batch, tokens, -1)))
        read = self.post_norm(x)
        added: Tensor = x + self.drop(self.down(functional.silu(self.gate(read)) * self.up(read)))
        return added

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream after the layer, [batch, tokens, hidden]."""
        queries, keys, values = self.project(self.input_norm(x))
        return self.finish(x, attention(queries, keys, values))


def attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return causal attention, [batch, heads, tokens, head_dim].

    On CPUs PyTorch's own takes two to five times as long with its gradient, for texts of this length.
    """
    batch, heads, tokens, width = queries.shape
    future = torch.full((tokens, tokens), float("-inf"), dtype=queries.dtype).triu(1)
    flat = (queries.flatten(0, 1), keys.flatten(0, 1).transpose(1, 2))
    weights = torch.baddbmm(future.expand(batch * heads, -1, -1), *flat, alpha=width**-0.5).softmax(-1)
    return (weights.to(values.dtype) @ values.flatten(0, 1)).view(batch, heads, tokens, width)


class Draft(nn.Module):
    """A decoder with few layers."""

    def __init__(self, shape: Shape, frequencies: Array, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(shape, frequencies) for _ in range(layers))
        self.norm = Norm(shape.hidden, shape.eps)

    def forward(self, embedded: Tensor) -> Tensor:
        """Return the last hidden states of embedded tokens, [batch, tokens, hidden]."""
        x = embedded
        for layer in self.layers:
            x = layer(x)
        normed: Tensor = self.norm(x)
        return normed


class Head(nn.Module):
    """An EAGLE-3 head: a draft whose layers also read the target's hidden states at the previous token.

    A few units of the target's residual stream are thousands of times as large as the others, so states are scaled
    before `fc`; the export folds the scales into it. `fc` predicts the target's last state from three others; later
    in a chain, where these are missing, the head's own output replaces it. Each layer receives it scaled to the
    residual stream there: added to the embeddings at the last state's size, it would drown them.
    """

    def __init__(self, shape: Shape, frequencies: Array, layers: int) -> None:
        super().__init__()
        self.scales: Tensor
        self.register_buffer("scales", torch.ones(3 * shape.hidden))
        self.fc = nn.Linear(3 * shape.hidden, shape.hidden, bias=False)
        self.hidden_norm = Norm(shape.hidden, shape.eps)
        self.layers = nn.ModuleList(Layer(shape, frequencies) for _ in range(layers))
        self.joins = nn.ModuleList(nn.Linear(shape.hidden, shape.hidden, bias=False) for _ in range(layers))
        self.sizes: Tensor
        self.register_buffer("sizes", torch.ones(layers))
        self.norm = Norm(shape.hidden, shape.eps)

    def forward(self, embedded: Tensor, states: Tensor, steps: int) -> list[Tensor]:
        """Run `steps` steps of a chain; return the output of each, [batch, tokens, hidden], before the last norm.

        Index i reads token i + 1 and the state at i. In step k the last k - 1 states are the head's own outputs, as
        when it proposes its k-th token.

        Args:
            embedded: the tokens 1, 2, ..., [batch, tokens, hidden].
            states: the target's at 0, 1, ..., [batch, tokens, 3 * hidden].
        """
        state, caches, outputs = self.fc(states * self.scales), [_Cache() for _ in self.layers], list[Tensor]()
        for _ in range(steps):
            x, given = embedded, self.hidden_norm(state)
            for layer, join, size, cache in zip(self.layers, self.joins, self.sizes, caches, strict=True):
                x = x + size * join(given)
                x = layer.finish(x, cache.attended(*layer.project(layer.input_norm(x))))
            outputs.append(x)
            state = _moved(x, 1)
        return outputs


class _Cache:
    """Keys and values of a layer along a chain: those from the target's states, then those of each later step.

    In step k, index i attends to the first ones up to i - k + 1, and to one of each later step.
    """

    def __init__(self) -> None:
        self.keys, self.values = list[Tensor](), list[Tensor]()

    def attended(self, queries: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Append a step's key and value, and attend; all are [batch, heads, tokens, head_dim]."""
        self.keys.append(key)
        self.values.append(value)
        step, tokens = len(self.keys) - 1, queries.shape[2]
        if not step:
            return attention(queries, key, value)
        scale, order = queries.shape[-1] ** -0.5, torch.arange(tokens)
        future = torch.where(order[None, :] > order[:, None] - step, float("-inf"), 0.0)
        true = (queries @ self.keys[0].transpose(2, 3)) * scale + future
        later = zip(self.keys[1:], self.values[1:], range(step - 1, -1, -1), strict=True)
        moved = [(_moved(keys, places), _moved(values, places)) for keys, values, places in later]
        own = [(queries * keys).float().sum(-1, keepdim=True) * scale for keys, _ in moved]
        weights = torch.cat([true, *own], dim=-1).softmax(-1)
        attended = weights[..., :tokens].to(value.dtype) @ self.values[0]
        for place, (_, values) in enumerate(moved):
            attended = attended + weights[..., tokens + place, None] * values
        return attended.to(value.dtype)


def _moved(x: Tensor, places: int) -> Tensor:
    """Shift tokens (second to last dimension) to the right, filling with zeros."""
    return functional.pad(x, (0, 0, places, 0))[..., : x.shape[-2], :] if places else x


NEVER = -1e4  # logit of tokens outside the draft's vocabulary


class Graph:
    """An OpenVINO network under construction: inputs, KV cache, and the parts that all decoders share."""

    def __init__(self, shape: Shape, frequencies: Array) -> None:
        """Create inputs, rotary embedding and mask."""
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
        """Return cosines and sines, [batch, 1, tokens, head_dim]."""
        positions = ops.convert(ops.unsqueeze(self.positions, _ints(1)), "f32")
        angles = ops.matmul(ops.constant(frequencies.reshape(1, -1, 1)), positions, False, False)
        angles = ops.transpose(angles, _ints([0, 2, 1]))
        both = ops.concat([angles, angles], -1)
        return ops.unsqueeze(ops.cos(both), _ints(1)), ops.unsqueeze(ops.sin(both), _ints(1))

    def _allowed(self) -> ov.Node:
        """Return the attention mask, 0 or minus infinity, [batch, 1, tokens, past and new tokens]."""
        length, tokens = ops.squeeze(_size(self.mask, 1), _ints(0)), ops.squeeze(_size(self.ids, 1), _ints(0))
        columns = ops.range(_ints(0), length, _ints(1), "i64")
        rows = ops.add(ops.range(_ints(0), tokens, _ints(1), "i64"), ops.subtract(length, tokens))
        causal = ops.less_equal(ops.unsqueeze(columns, _ints(0)), ops.unsqueeze(rows, _ints(1)))
        real = ops.greater(ops.unsqueeze(self.mask, _ints([1, 2])), _ints(0))
        both = ops.logical_and(ops.unsqueeze(causal, _ints([0, 1])), real)
        return ops.select(both, _floats(0.0), _floats(-np.inf))

    def product(self, x: ov.Node, matrix: ov.Node, name: str) -> ov.Node:
        """Multiply `x` by the transposed matrix."""
        node = ops.matmul(x, matrix, False, True)
        node.set_friendly_name(name)
        return node

    def norm(self, x: ov.Node, scales: Array) -> ov.Node:
        """Apply RMS norm."""
        mean = ops.reduce_mean(ops.power(x, _floats(2.0)), _ints([-1]), True)
        inverse = ops.divide(_floats(1.0), ops.sqrt(ops.add(mean, _floats(self.shape.eps))))
        return ops.multiply(_floats(scales.reshape(1, 1, -1)), ops.multiply(x, inverse))

    def layer(self, residual: ov.Node, read: ov.Node, weights: Mapping[str, Array], name: str) -> ov.Node:
        """Add a layer whose attention reads `read`; return the residual stream, named after the layer."""
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
        """Append to a cached tensor and return all of it."""
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
        """Repeat keys or values for the heads that share them."""
        share = self.shape.heads // self.shape.kv_heads
        if share == 1:
            return x
        apart = ops.unsqueeze(x, _ints(2))
        kv_heads, repeats, width = (_ints([size]) for size in (self.shape.kv_heads, share, self.shape.head_dim))
        wide = ops.broadcast(apart, ops.concat([self.batch, kv_heads, repeats, _size(x, 2), width], 0))
        return ops.reshape(wide, _ints([0, self.shape.heads, -1, self.shape.head_dim]), True)

    def model(self, results: Mapping[str, ov.Node], name: str) -> ov.Model:
        """Return the network with these outputs."""
        outputs = []
        for output, node in results.items():
            result = ops.result(node)
            result.output(0).set_names({output})
            result.set_friendly_name(output)
            outputs.append(result)
        return ov.Model(outputs, self.sinks, self.parameters, name)


_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


def int8(matrix: Array) -> ov.Node:
    """Return a matrix stored as int8, with one scale per row."""
    scales = np.maximum(np.abs(matrix).max(1, keepdims=True) / 127, 1e-6).astype(np.float16)
    whole = np.clip(np.rint(matrix / scales.astype(np.float32)), -127, 127).astype(np.int8)
    half = ops.multiply(ops.convert(ops.constant(whole), "f16"), ops.constant(scales))
    return ops.convert(half, "f32")


def parameter(name: str, kind: ov.Type, rank: int) -> Any:
    """Return an input with dynamic dimensions."""
    node = ops.parameter([-1] * rank, kind)
    node.set_friendly_name(name)  # paged attention looks it up by this name
    node.output(0).set_names({name})
    return node


def _size(node: ov.Node, axis: int) -> ov.Node:
    """Return a dimension's size, [1]."""
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
        """Store the rows once if embedding and output share them."""
        places = np.full(size, len(vocabulary), np.int32)
        places[vocabulary] = np.arange(len(vocabulary))
        self.places, self.size = ops.constant(places), len(vocabulary)
        self.embedding = int8(start.embedding)
        shared = np.array_equal(start.embedding[:-1], start.rows)
        unknown = np.zeros((1, start.rows.shape[1]), np.float32)
        self.rows = self.embedding if shared else int8(np.vstack([start.rows, unknown]))

    def read(self, ids: ov.Node) -> ov.Node:
        """Embed token ids, [batch, tokens, hidden]."""
        zero = ops.constant(np.int32(0))
        return ops.gather(self.embedding, ops.gather(self.places, ids, zero), zero)

    def small(self, graph: Graph, states: ov.Node) -> ov.Node:
        """Return logits over the draft's vocabulary and the unknown token, which is never chosen."""
        logits = graph.product(states, self.rows, "lm_head")
        unknown = np.zeros(self.size + 1, np.float32)
        unknown[-1] = 2 * NEVER
        return ops.maximum(ops.add(logits, ops.constant(unknown)), ops.constant(np.float32(NEVER)))

    def whole(self, graph: Graph, states: ov.Node) -> ov.Node:
        """Return logits over the target's vocabulary."""
        return ops.gather(self.small(graph, states), self.places, ops.constant(np.int32(-1)))


def draft_model(start: Start, weights: Weights, vocabulary: Ids, size: int) -> ov.Model:
    """Build a standalone draft, for a target with `size` tokens.

    Ids are mapped to the draft's vocabulary on input, and logits to the target's on output, so from outside the
    vocabulary is the target's.
    """
    graph, tables = Graph(start.shape, start.frequencies), Vocabulary(start, vocabulary, size)
    x = tables.read(graph.ids)
    for index in range(len(start.layers)):
        own = _under(weights, f"layers.{index}.")
        x = graph.layer(x, graph.norm(x, own["input_norm.weight"]), own, f"model.layers.{index}")
    return graph.model({"logits": tables.whole(graph, graph.norm(x, weights["norm.weight"]))}, "draft")


def head_model(start: Start, weights: Weights, vocabulary: Ids, size: int) -> ov.Model:
    """Build an EAGLE-3 head for a target with `size` tokens.

    Logits cover the target's whole vocabulary, though only the draft's tokens are ever chosen: GenAI applies a
    repetition penalty to the prompt's tokens by id, so every id needs a logit. `d2t` is therefore zero.
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
    model.set_rt_info(True, "eagle3_mode")  # marks it as a head for GenAI
    return model


def _decoy() -> ov.Node:
    """Return zero, [1, 1], looked up in a large table.

    GenAI replaces the first large table that a head looks up with the target's embeddings. This head has its own rows
    for its own tokens, so it offers GenAI another table.
    """
    table = ops.broadcast(ops.constant(np.float32(0)), ops.constant(np.array([2048, 1], np.int64)))
    row = ops.gather(table, ops.constant(np.array([0], np.int64)), ops.constant(np.int32(0)))
    return ops.multiply(row, ops.constant(np.float32(0)))


def config(network: Network, target: Mapping[str, Any], layers: int, eagle3: bool) -> dict[str, Any]:
    """Return the fields of `config.json` that the application and GenAI read."""
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
    """Write the folder atomically, by way of a scratch folder next to it."""
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
