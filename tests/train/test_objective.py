"""What a draft learns, and how it is scored: losses with their gradients, the loop, figures."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed; docs/training.md says how", allow_module_level=True)

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from specdemo.analysis.metrics import passes
from specdemo.train import fit
from specdemo.train.evaluate import acceptance_length
from specdemo.train.fit import Plan, Point
from specdemo.train.objective import LATER, Context, Loss, Weights, gradients
from specdemo.train.request import OBJECTIVES, Objective


def _expected(logits: torch.Tensor, wanted: torch.Tensor, weights: Weights) -> torch.Tensor:
    """Losses as their formulas say, by position."""
    logs = logits.log_softmax(-1)
    return (
        -weights.distribution * (wanted * logs).sum(-1)
        - weights.choice * logs.gather(-1, wanted.argmax(-1, keepdim=True))[:, 0]
        - weights.acceptance * torch.minimum(wanted, logs.exp()).sum(-1).log()
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_gradients_of_the_objectives_are_those_of_their_formulas(objective: Objective) -> None:
    torch.manual_seed(0)
    logits, wanted = torch.randn(50, 90, requires_grad=True), torch.randn(50, 90).softmax(-1)
    loss, gradient = gradients(logits.detach().clone(), wanted, LATER[objective])
    expected = _expected(logits, wanted, LATER[objective]).sum()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(gradient, logits.grad, rtol=1e-4, atol=1e-6)


def test_the_loss_and_its_gradient_are_those_under_the_penalty() -> None:
    torch.manual_seed(0)
    scored = torch.zeros(3, 100, dtype=torch.bool)
    scored[:, 20:90] = True
    batch: Any = type("Batch", (), {"scored": scored, "first": torch.randint(0, 200, (3, 91), dtype=torch.int32)})
    positions = int(scored.sum())
    states = torch.randn(positions, 32, requires_grad=True)
    rows = torch.randn(90, 32).bfloat16().float().requires_grad_()
    wanted = torch.randn(positions, 90).softmax(-1).bfloat16()
    loss = Loss.apply(states, rows, wanted, Context(batch, 1.1), LATER["choice"])
    loss.backward()
    found = [states.grad, rows.grad]
    states.grad = rows.grad = None
    logits = states @ rows.T
    where, place = scored.nonzero(as_tuple=True)
    repeated = batch.first[where, :-1] <= place[:, None]
    logits = torch.where(repeated, torch.where(logits > 0, logits / 1.1, logits * 1.1), logits)
    expected = _expected(logits, wanted.float(), LATER["choice"]).mean()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=0.01)
    for one, right in zip(found, (states.grad, rows.grad), strict=True):
        assert one is not None
        assert right is not None
        torch.testing.assert_close(one, right, rtol=0, atol=0.02 * right.abs().max().item())


@dataclass
class Found:
    loss: float
    agreement: float = 0.5


def _fitted(losses: list[float], file: Path, say: list[str]) -> tuple[nn.Linear, list[Point], list[float]]:
    """Twenty checks at most, one a step, that find these losses; also the weight after each step."""
    torch.manual_seed(0)
    model, weights, left = nn.Linear(1, 1, bias=False), list[float](), iter(losses)

    def check() -> Found:
        weights.append(model.weight.item())
        return Found(next(left))

    curve = fit.fit(
        model, lambda batch, _: model(batch).square().mean(), lambda _: torch.ones(1, 1),
        Plan(steps=20), file, check, say.append,
    )  # fmt: skip
    return model, curve, weights


def test_training_stops_early_and_keeps_the_best_weights(tmp_path: Path) -> None:
    said = list[str]()
    model, curve, weights = _fitted([3.0, 2.0, 1.0, *[1.5] * 17], tmp_path / "training.pt", said)
    assert len(curve) == 3 + fit.PATIENCE
    assert model.weight.item() == weights[2] != weights[-1]
    assert "has not fallen since step 3" in said[-1]
    again, same, _ = _fitted([], tmp_path / "training.pt", said)
    assert same == curve
    assert again.weight.item() == weights[2]


def test_training_that_improves_goes_on_to_the_end(tmp_path: Path) -> None:
    said = list[str]()
    model, curve, weights = _fitted([1 / step for step in range(1, 21)], tmp_path / "training.pt", said)
    assert [point.step for point in curve] == list(range(1, 21))
    assert model.weight.item() == weights[-1]
    assert not any("early" in line for line in said)
    fit.write_curve(curve, tmp_path / "curve.json")
    assert '"held_out_loss": 0.05' in (tmp_path / "curve.json").read_text()


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 8))
def test_acceptance_length_is_that_of_the_rounds(agrees: list[bool], lookahead: int) -> None:
    rounds = passes(agrees, lookahead, len(agrees) + lookahead + 1).target
    right = np.array([agrees] * lookahead)
    assert acceptance_length([right], lookahead) == pytest.approx(len(agrees) / rounds)
