"""What the target thought while it wrote: hidden states at every position, from one pass of its IR over the text.

The last one, after the last norm, times the output rows gives the target's whole distribution, so none is stored:
2 bytes a hidden unit instead of probabilities of chosen tokens. A head sees three earlier states besides.
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import openvino as ov

from specdemo.train.conversations import LENGTH, OFFSET, Conversations
from specdemo.train.network import Ids, Network

States = npt.NDArray[np.float16]
"""Shape (tokens, states, hidden)."""


class Labeller:
    """A target that gives its states instead of logits."""

    def __init__(self, network: Network, layers: tuple[int, ...], threads: int = 0) -> None:
        """Compile it with the states after `layers` and the last one as outputs."""
        self.states = len(layers) + 1
        outputs = [network.ends[layer].output(0) for layer in layers] + [network.head.input_value(0)]
        results = [ov.opset13.result(output) for output in outputs]
        model = ov.Model(results, network.model.get_sinks(), network.model.get_parameters(), "states")
        # The device's own precision, but for activations: quantized ones are far from what the target thinks.
        properties = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0} | ({"INFERENCE_NUM_THREADS": threads} if threads else {})
        self.request = network.core.compile_model(model, "CPU", properties).create_infer_request()
        self.inputs = {name for value in model.inputs for name in value.get_names()}

    def __call__(self, ids: Ids) -> States:
        """States at every position of a text."""
        self.request.reset_state()
        given = {
            "input_ids": ids[None],
            "attention_mask": np.ones((1, len(ids)), np.int64),
            "position_ids": np.arange(len(ids))[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        self.request.infer({name: value for name, value in given.items() if name in self.inputs})
        found = [self.request.get_output_tensor(index).data[0] for index in range(self.states)]
        return np.stack(found, axis=1).astype(np.float16)


def write_labels(
    labeller: Callable[[Ids], States],
    row_bytes: int,
    conversations: Conversations,
    file: Path,
    say: Callable[[str], None] = print,
) -> None:
    """Append the states of all conversations that have none yet; what a crash left of one is written anew."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    ends = conversations.rows[:, OFFSET].astype(np.int64) + conversations.rows[:, LENGTH]
    done = int(np.searchsorted(ends, file.stat().st_size // row_bytes, side="right"))
    with file.open("r+b") as sink:
        sink.truncate(int(ends[done - 1]) * row_bytes if done else 0)
        sink.seek(0, 2)
        began = time.monotonic()
        for index in range(done, len(conversations)):
            sink.write(labeller(conversations[index].ids).tobytes())
            if (index + 1) % 64 == 0 or index + 1 == len(conversations):
                left = (time.monotonic() - began) / (index + 1 - done) * (len(conversations) - index - 1)
                say(f"labels: {index + 1} of {len(conversations)} conversations, {left / 60:.0f} minutes left")
