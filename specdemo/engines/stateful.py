"""A decoder-only model run directly on `openvino`, with its KV cache kept inside the model's state.

Rolling back a rejected tail copies nothing: the rejected positions stay in the cache, their attention-mask
entries become 0, and position ids continue from the accepted length.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino

from specdemo.errors import LoadError

Logits = npt.NDArray[np.float32]


class StatefulModel:
    """Token ids in, logits out."""

    def __init__(self, folder: Path, device: str, properties: dict[str, str]) -> None:
        """Compile the folder's model.

        Raises:
            LoadError: OpenVINO cannot load the model on this device.
        """
        try:
            compiled = openvino.Core().compile_model(folder / "openvino_model.xml", device, properties)
        except RuntimeError as error:
            raise LoadError(f"OpenVINO cannot load {folder.name!r} on {device}; export it again.") from error
        self._inputs = {name for port in compiled.inputs for name in port.get_names()}
        self._request = compiled.create_infer_request()
        self._mask: list[int] = []
        self.length = 0

    def reset(self) -> None:
        """Forget everything that was fed."""
        self._request.reset_state()
        self._mask.clear()
        self.length = 0

    def feed(self, tokens: Sequence[int]) -> Logits:
        """Append tokens; return the logits after each, shape (len(tokens), vocabulary)."""
        self._mask += [1] * len(tokens)
        values: dict[str, Any] = {
            "input_ids": np.array([tokens], np.int64),
            "attention_mask": np.array([self._mask], np.int64),
            "position_ids": np.arange(self.length, self.length + len(tokens), dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        self.length += len(tokens)
        outputs = self._request.infer({name: values[name] for name in values.keys() & self._inputs})
        logits: Logits = outputs["logits"][0]
        return logits

    def rollback(self, tokens: int) -> None:
        """Take back the last tokens that still count."""
        live = [index for index, entry in enumerate(self._mask) if entry]
        for index in live[self.length - tokens :]:
            self._mask[index] = 0
        self.length -= tokens
