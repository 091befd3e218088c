"""A trained draft as a folder that every engine takes: IR, configuration, tokenizer."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from specdemo.models.graph import seen_layers
from specdemo.train.graph import NEVER, Graph, int8, parameter
from specdemo.train.lessons import Start
from specdemo.train.network import Array, Ids, Network

Weights = Mapping[str, Array]
COPIED = ("*tokenizer*", "generation_config.json", "chat_template.*")


class Vocabulary:
    """The kept tokens inside a network whose ids and logits are the target's."""

    def __init__(self, start: Start, kept: Ids, size: int) -> None:
        """Store the rows once, if what is read and what is written share them."""
        places = np.full(size, len(kept), np.int32)
        places[kept] = np.arange(len(kept))
        self.places, self.kept = ops.constant(places), kept
        self.embedding = int8(start.embedding)
        shared = np.array_equal(start.embedding[:-1], start.rows)
        unknown = np.zeros((1, start.rows.shape[1]), np.float32)
        self.rows = self.embedding if shared else int8(np.vstack([start.rows, unknown]))

    def read(self, ids: ov.Node) -> ov.Node:
        """Rows of ids, [batch, tokens, hidden]."""
        zero = ops.constant(np.int32(0))
        return ops.gather(self.embedding, ops.gather(self.places, ids, zero), zero)

    def small(self, graph: Graph, states: ov.Node) -> ov.Node:
        """Logits of the kept tokens, and of the unknown one, which is never chosen."""
        logits = graph.product(states, self.rows, "lm_head")
        unknown = np.zeros(len(self.kept) + 1, np.float32)
        unknown[-1] = 2 * NEVER
        return ops.maximum(ops.add(logits, ops.constant(unknown)), ops.constant(np.float32(NEVER)))

    def whole(self, graph: Graph, states: ov.Node) -> ov.Node:
        """Logits of all tokens of the target."""
        return ops.gather(self.small(graph, states), self.places, ops.constant(np.int32(-1)))


def draft_model(start: Start, weights: Weights, kept: Ids, size: int) -> ov.Model:
    """A draft of its own, for a vocabulary of so many tokens.

    Ids become places among the kept tokens when they come in, and logits of the kept tokens become logits of all when
    they go out, so from outside its vocabulary is the target's.
    """
    graph, vocabulary = Graph(start.shape, start.frequencies), Vocabulary(start, kept, size)
    x = vocabulary.read(graph.ids)
    for index in range(len(start.layers)):
        own = _under(weights, f"layers.{index}.")
        x = graph.layer(x, graph.norm(x, own["input_norm.weight"]), own, f"model.layers.{index}")
    return graph.model({"logits": vocabulary.whole(graph, graph.norm(x, weights["norm.weight"]))}, "draft")


def head_model(start: Start, weights: Weights, kept: Ids, size: int) -> ov.Model:
    """An EAGLE-3 head for a target with so many tokens.

    Its logits are those of all tokens of the target, though it knows only the kept ones: GenAI holds a repetition
    penalty against tokens of the prompt by their ids, which must not lie beyond the logits. So `d2t` changes nothing.
    """
    graph, vocabulary = Graph(start.shape, start.frequencies), Vocabulary(start, kept, size)
    hidden = parameter("hidden_states", ov.Type.f32, 3)
    graph.parameters.insert(1, hidden)
    scales = ops.constant(weights["scales"].reshape(1, -1))
    state = graph.product(hidden, ops.multiply(int8(weights["fc.weight"]), scales), "fc")
    read = graph.norm(state, weights["hidden_norm.weight"])
    x = ops.add(_decoy(), vocabulary.read(graph.ids))
    for index, scale in enumerate(weights["sizes"]):
        own, last = _under(weights, f"layers.{index}."), index == len(start.layers) - 1
        join = int8(weights[f"joins.{index}.weight"] * scale)
        x = ops.add(x, graph.product(read, join, f"join.{index}"))
        name = "midlayer" if last else f"model.layers.{index}"
        x = graph.layer(x, graph.norm(x, own["input_norm.weight"]), own, name)
    logits = vocabulary.whole(graph, graph.norm(x, weights["norm.weight"]))
    to_target = ops.constant(np.zeros(size, np.int64))
    to_target.set_friendly_name("d2t")
    model = graph.model({"logits": logits, "d2t": to_target}, "eagle3")
    model.set_rt_info(True, "eagle3_mode")  # by which GenAI knows it
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
    ov.save_model(model, scratch / "openvino_model.xml", compress_to_fp16=False)
    (scratch / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    for pattern in COPIED if tokenizer else ():
        for file in target.glob(pattern):
            shutil.copyfile(file, scratch / file.name)
    shutil.rmtree(folder, ignore_errors=True)
    scratch.rename(folder)


def _under(weights: Weights, prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
