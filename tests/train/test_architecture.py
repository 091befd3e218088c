"""Drafts and heads as PyTorch modules, and what becomes of them as OpenVINO IR."""

import importlib.util
from dataclasses import replace
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed; docs/training.md says how", allow_module_level=True)

import numpy as np
import openvino as ov
import torch
from torch.nn import functional

from specdemo.train.architecture import Draft, Head, draft_model, head_model, int8
from specdemo.train.network import Array, Network, Start, from_target
from tests.support.folders import FIXTURES

TARGET = FIXTURES / "eagle3" / "target"


@pytest.fixture(scope="module")
def start() -> Start:
    """The first and last layer of the target, and half of its tokens."""
    network = Network(TARGET)
    kept = np.arange(0, network.shape.vocabulary, 2)
    start = from_target(network, kept, [0, network.shape.layers - 1])
    return Start(
        start.shape,
        start.frequencies,
        [{name: _stored(value) for name, value in layer.items()} for layer in start.layers],
        start.norm,
        _stored(start.embedding),
        _stored(start.rows),
    )


def _stored(matrix: Array) -> Array:
    """What a matrix becomes when it is stored as int8."""
    if matrix.ndim == 1:
        return matrix
    model = ov.Model([ov.opset13.result(int8(matrix))], [], "stored")
    return np.array(ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})({})[0])


def _run(model: ov.Model, ids: np.ndarray[Any, Any], pieces: list[int], **given: np.ndarray[Any, Any]) -> Array:
    """Logits [tokens, vocabulary] of a text that is read in pieces."""
    exact = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    request = ov.Core().compile_model(model, "CPU", exact).create_infer_request()
    found, first = [], 0
    for last in pieces:
        feeds = {"input_ids": ids[None, first:last], "attention_mask": np.ones((1, last), np.int64)}
        feeds |= {"position_ids": np.arange(first, last)[None], "beam_idx": np.zeros(1, np.int32)}
        request.infer(feeds | {name: value[None, first:last] for name, value in given.items()})
        found.append(np.array(request.get_tensor("logits").data[0]))
        first = last
    return np.concatenate(found)


@pytest.mark.parametrize("pieces", [[12], [5, 6, 12]])
def test_an_exported_draft_computes_what_was_trained(start: Start, pieces: list[int]) -> None:
    kept, size = np.arange(0, start.shape.vocabulary, 2), start.shape.vocabulary
    module = Draft(start.shape, start.frequencies, 2).eval()
    for layer, weights in zip(module.layers, start.layers, strict=True):
        layer.load_state_dict({f"{name}.weight": torch.from_numpy(value) for name, value in weights.items()})
    weights = {name: value.detach().numpy() for name, value in module.state_dict().items()}
    ids = np.array([2, 4, 7, 100, 510, 4, 9, 8, 60, 60, 3, 2])  # odd ones are unknown to the draft
    small = torch.from_numpy(np.where(ids % 2, len(kept), ids // 2))
    with torch.no_grad():
        states = module(functional.embedding(small, torch.from_numpy(start.embedding))[None])[0]
    expected = (states @ torch.from_numpy(start.rows).T).numpy()
    found = _run(draft_model(start, weights, kept, size), ids, pieces)
    np.testing.assert_allclose(found[:, kept], expected, rtol=0, atol=1e-3 * abs(expected).max())
    assert (np.delete(found, kept, axis=1) < found[:, kept].min() - 1000).all()


def _head(start: Start) -> Head:
    torch.manual_seed(1)
    head = Head(start.shape, start.frequencies, 2)
    head.eval()
    with torch.no_grad():
        for weights in head.parameters():
            if weights.dim() == 2:
                weights.copy_(torch.from_numpy(_stored(weights.numpy())))
        head.scales.uniform_(0.5, 2)
        head.sizes.fill_(2)  # which leaves int8 as exact
        head.norm.weight.uniform_(0.5, 2)
    return head


@pytest.mark.parametrize("pieces", [[12], [5, 6, 12]])
def test_an_exported_head_computes_what_was_trained(start: Start, pieces: list[int]) -> None:
    kept, head = np.arange(0, start.shape.vocabulary, 2), _head(start)
    weights = {name: value.detach().numpy() for name, value in head.state_dict().items()}
    ids = np.arange(0, 24, 2)
    states = np.random.default_rng(0).normal(size=(12, 3 * start.shape.hidden)).astype(np.float32)
    with torch.no_grad():
        embedded = torch.from_numpy(start.embedding[ids // 2])[None]
        output = head.norm(head(embedded, torch.from_numpy(states)[None], 1)[0])[0]
    expected = (output @ torch.from_numpy(start.rows).T).numpy()
    model = head_model(start, weights, kept, start.shape.vocabulary)
    found = _run(model, ids, pieces, hidden_states=states)[:, kept]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * abs(expected).max())


def test_the_steps_of_a_chain_are_those_that_a_head_would_take_one_by_one(start: Start) -> None:
    head, true = _head(start), 8
    embedded, states = torch.randn(1, 12, start.shape.hidden), torch.randn(1, 12, 3 * start.shape.hidden)
    with torch.no_grad():
        chains = head(embedded, states, 3)
        known = head.fc(states * head.scales)[:, :true]
        for step, together in enumerate(chains):
            x = embedded[:, : true + step]
            for layer, join, size in zip(head.layers, head.joins, head.sizes, strict=True):
                x = layer(x + size * join(head.hidden_norm(known)))
            last = x[:, -1:]
            torch.testing.assert_close(last[:, 0], together[:, true + step - 1], rtol=1e-4, atol=1e-4)
            known = torch.cat([known, last], 1)


def test_a_grown_vocabulary_keeps_trained_rows_and_moves_the_others_alike(start: Start) -> None:
    network = Network(TARGET)
    old, new = np.arange(0, network.shape.vocabulary, 2), np.arange(network.shape.vocabulary)
    trained = 0.5 * network.embedding[old] + 0.25  # what training did to all rows
    embedding, rows = np.vstack([trained, start.embedding[-1:]]), 3 * network.output[old]
    grown = replace(start, embedding=embedding, rows=rows).grown(old, new, network)
    np.testing.assert_array_equal(grown.embedding[old], trained)
    np.testing.assert_array_equal(grown.rows[old], rows)
    others = np.delete(new, old)
    moved = 0.5 * network.embedding[others] + 0.25
    error, before = (np.abs(found - moved).mean() for found in (grown.embedding[others], network.embedding[others]))
    assert error < 0.1 * before
    np.testing.assert_array_equal(grown.embedding[-1], start.embedding[-1])
    shrunk = replace(start, embedding=embedding, rows=rows).grown(old, old[:5], network)
    np.testing.assert_array_equal(shrunk.rows, rows[:5])
