"""Pairs made from the bundled one, to see what lookahead policies do on other ratios of costs and acceptance.

- costlier: the bundled target with more units in every MLP whose output weights are 0. It says exactly the same and
  so agrees with the draft as before, but a pass reads about four times the weights.
- contrary: the bundled draft with its logits shifted by one token, so that it is sure of itself and always wrong.
- self: the bundled target as its own draft: always right, and as slow as the target.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino
from openvino import opset13 as opset

from specdemo.models.pairs import BUNDLED, bundled_pair
from specdemo.records import ModelPair
from specdemo.settings import RuntimeSettings
from tests.support.folders import pair_from_folders

UNITS = 6144


def make_pairs(folder: Path) -> dict[str, ModelPair]:
    """Every pair by its name; the models that are not bundled are written into the folder."""
    target, draft = BUNDLED / "target", BUNDLED / "draft"
    costlier = _changed(target, folder / "costlier-target", _pad)
    contrary = _changed(draft, folder / "contrary-draft", _shift)
    runtime = RuntimeSettings(precision="f32")
    return {
        "bundled": bundled_pair(),
        "costlier": pair_from_folders(costlier, draft, runtime),
        "contrary": pair_from_folders(target, contrary, runtime),
        "costlier contrary": pair_from_folders(costlier, contrary, runtime),
        "self": pair_from_folders(target, target, runtime),
    }


def _changed(source: Path, folder: Path, change: Callable[[openvino.Model], None]) -> Path:
    """A copy of a model folder with a change in the model."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("openvino_model.*"), dirs_exist_ok=True)
    model = openvino.Core().read_model(source / "openvino_model.xml")
    change(model)
    model.validate_nodes_and_infer_types()
    openvino.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
    return folder


def _pad(model: openvino.Model) -> None:
    """Widen every MLP by units whose output weights are 0; the products of the others stay as they are."""
    random = np.random.default_rng(0)
    for node in model.get_ordered_ops():
        name = node.get_friendly_name()
        if node.get_type_name() != "MatMul" or ".mlp." not in name:
            continue
        weights = node.input_value(1).get_node()
        while weights.get_type_name() != "Constant":  # conversions, and a multiplication by one
            weights = weights.input_value(0).get_node()
        values = np.array(weights.data, np.float32)
        if "down_proj" in name:
            padded = np.pad(values, ((0, 0), (0, UNITS - values.shape[1])))
        else:
            extra = random.normal(0, 0.02, (UNITS - values.shape[0], values.shape[1]))
            padded = np.concatenate([values, extra.astype(values.dtype)])
        node.input(1).replace_source_output(opset.constant(padded).output(0))


def _shift(model: openvino.Model) -> None:
    """Give every token the logit of its neighbour."""
    result = model.get_results()[0]
    logits = result.input_value(0)
    names = logits.get_names()
    shifted = opset.roll(logits, opset.constant(np.int64(1)), opset.constant(np.int64(-1)))
    logits.get_tensor().set_names(set())
    shifted.output(0).get_tensor().set_names(names)
    result.input(0).replace_source_output(shifted.output(0))
