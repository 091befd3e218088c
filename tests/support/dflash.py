"""A tiny DFlash draft: it proposes all tokens of a round in one pass, from the target's hidden states.

The state for every place of a block is a mixture of the token's embedding and of the target's last state, so it is
right now and then, and outputs must be the target's own. Real drafts have several layers with a KV cache.
"""

import json
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as ops

LAYERS = (2, 5, 7)  # the target layer that it reads
MASK = 1


def write(folder: Path, target: Path, *, hidden: int, vocabulary: int) -> Path:
    folder.mkdir(parents=True)
    embeddings = _parameter("inputs_embeds", ov.Type.f32, [-1, -1, hidden])
    states = _parameter("hidden_states", ov.Type.f32, [1, -1, hidden * len(LAYERS)])
    positions = _parameter("position_ids", ov.Type.i64, [-1, -1])
    mask = _parameter("attention_mask", ov.Type.i64, [-1, -1])
    mixture = np.random.default_rng(0).normal(0, 0.02, (hidden * len(LAYERS), hidden)).astype(np.float32)
    mixture[-hidden:] += np.eye(hidden, dtype=np.float32)
    last = ops.gather(states, ops.constant(np.array([-1], np.int64)), ops.constant(np.int64(1)))
    state = ops.add(ops.matmul(last, ops.constant(mixture), False, False), embeddings)
    state = ops.multiply(state, ops.constant(np.float32(1)))
    result = ops.result(state)
    state.output(0).set_names({"last_hidden_state"})
    model = ov.Model([result], [embeddings, states, positions, mask], "dflash")
    model.set_rt_info(True, ["dflash_mode"])
    model.set_rt_info(str(MASK), ["dflash", "mask_token_id"])
    model.set_rt_info(",".join(map(str, LAYERS)), ["dflash", "target_layer_ids"])
    ov.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
    settings = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": vocabulary,
        "block_size": 8,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(LAYERS)},
    }
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def _parameter(name: str, kind: ov.Type, shape: list[int]) -> ov.Node:
    parameter = ops.parameter(shape, kind, name=name)
    parameter.output(0).set_names({name})
    return parameter
