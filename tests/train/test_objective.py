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
from specdemo.train import fit, objective
from specdemo.train.architecture import PRODUCTS
from specdemo.train.evaluate import acceptance_length
from specdemo.train.fit import Plan, Point
from specdemo.train.objective import LATER, MATCHING, Context, Learner, Loss, Weights, gradients, weights_at
from specdemo.train.request import OBJECTIVES, Objective, Request


def _expected(logits: torch.Tensor, wanted: torch.Tensor, weights: Weights) -> torch.Tensor:
    """Losses as their formulas say, by position."""
    logs = logits.log_softmax(-1)
    return (1 + weights.mistakes * (logits.argmax(-1) != wanted.argmax(-1))) * (
        -weights.distribution * (wanted * logs).sum(-1)
        - weights.choice * logs.gather(-1, wanted.argmax(-1, keepdim=True))[:, 0]
        - weights.acceptance * torch.minimum(wanted, logs.exp()).sum(-1).log()
    )


@pytest.mark.parametrize("mistakes", [0, 1.5])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_of_the_objectives_are_those_of_their_formulas(name: Objective, mistakes: float) -> None:
    torch.manual_seed(0)
    weights = LATER[name]._replace(mistakes=mistakes)
    logits, wanted = torch.randn(50, 90, requires_grad=True), torch.randn(50, 90).softmax(-1)
    wanted[:20] = (2 * logits.detach()[:20]).softmax(-1)  # where the draft is right
    loss, gradient = gradients(logits.detach().clone(), wanted, weights)
    expected = _expected(logits, wanted, weights).sum()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(gradient, logits.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mistakes", [0, 1.5])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_tokens_are_learned_as_distributions_that_are_sure_of_them(name: Objective, mistakes: float) -> None:
    torch.manual_seed(0)
    weights, logits = LATER[name]._replace(mistakes=mistakes), torch.randn(50, 90)
    tokens = torch.where(torch.arange(50) < 20, logits.argmax(-1), torch.randint(0, 90, (50,)))
    sure = nn.functional.one_hot(tokens, 90).float()
    loss, gradient = gradients(logits.clone(), tokens, weights)
    expected, right = gradients(logits.clone(), sure, weights)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(gradient, right, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("products", [torch.bfloat16, torch.float32])
def test_the_loss_and_its_gradient_are_those_under_the_penalty(
    products: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objective, "PRODUCTS", products)
    torch.manual_seed(0)
    learned = torch.zeros(3, 100, dtype=torch.bool)
    learned[:, 20:90] = True
    batch: Any = type("Batch", (), {"learned": learned, "first": torch.randint(0, 200, (3, 91), dtype=torch.int32)})
    positions = int(learned.sum())
    states = torch.randn(positions, 32, requires_grad=True)
    rows = torch.randn(90, 32).bfloat16().float().requires_grad_()
    wanted = torch.randn(positions, 90).softmax(-1).to(products)
    loss = Loss.apply(states, rows, list(wanted.split(70)), Context(batch, 1.1), LATER["choice"])
    loss.backward()
    found = [states.grad, rows.grad]
    states.grad = rows.grad = None
    logits = states @ rows.T
    where, place = learned.nonzero(as_tuple=True)
    repeated = batch.first[where, :-1] <= place[:, None]
    logits = torch.where(repeated, torch.where(logits > 0, logits / 1.1, logits * 1.1), logits)
    expected = _expected(logits, wanted.float(), LATER["choice"]).mean()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=0.01)
    for one, right in zip(found, (states.grad, rows.grad), strict=True):
        assert one is not None
        assert right is not None
        torch.testing.assert_close(one, right, rtol=0, atol=0.02 * right.abs().max().item())


def test_the_parts_of_the_training_have_their_own_weights() -> None:
    plain, both = Request("target", objective="choice"), Request("target", match_states=True, replay=True)
    assert [weights_at(share, plain) for share in (0, 0.5, 0.9)] == [MATCHING, LATER["choice"], LATER["choice"]]
    first, second, last = (weights_at(share, both) for share in (0, 0.5, 0.9))
    assert (first.states > 0, first.mistakes) == (True, 0)
    assert second == LATER["choice"]
    assert (last.states, last.mistakes > 0) == (0, True)


class _Given(Learner):
    """A learner whose last hidden states are parameters of their own."""

    def __init__(self, states: torch.Tensor, rows: np.ndarray[Any, Any], request: Request) -> None:
        start: Any = type("Start", (), {"embedding": np.vstack([rows, rows[:1]]), "rows": rows})
        super().__init__(torch.from_numpy(rows), start, request)
        self.states = nn.Parameter(states)

    def predictions(self, batch: Any, steps: int) -> list[torch.Tensor]:
        return [self.states] * steps


def _batch(states: torch.Tensor, labelled: list[bool]) -> Any:
    size, tokens = states.shape[:2]
    given = {
        "states": states,
        "labelled": labelled,
        "small": torch.randint(0, 90, (size, tokens)),
        "learned": (torch.arange(tokens) < tokens - 1).expand(size, -1),
        "first": torch.randint(0, 9, (size, 91), dtype=torch.int32),
    }
    return type("Batch", (), given)


def test_a_text_without_states_teaches_its_tokens() -> None:
    torch.manual_seed(0)
    theirs = torch.randn(3, 7, 1, 32, dtype=PRODUCTS)
    theirs[1] = 0
    batch = _batch(theirs, [True, False, True])
    states, rows = torch.randn(3, 7, 32), np.random.default_rng(0).normal(size=(90, 32)).astype(np.float32)
    learner = _Given(states, rows, Request("target", penalty=1))
    loss = learner.loss(batch, 0)
    logs = (states @ torch.from_numpy(rows).T).log_softmax(-1)[:, :-1]
    wanted = (theirs[:, :-1, 0].float() @ torch.from_numpy(rows).T).softmax(-1)
    wanted[1] = nn.functional.one_hot(batch.small[1, 1:], 90)
    assert loss.item() == pytest.approx(-(wanted * logs).sum(-1).mean().item(), rel=0.01)


def test_states_are_drawn_to_the_targets() -> None:
    torch.manual_seed(0)
    theirs = torch.randn(2, 7, 1, 32, dtype=PRODUCTS)
    batch = _batch(theirs, [True, True])
    states, rows = torch.randn(2, 7, 32), np.random.default_rng(0).normal(size=(90, 32)).astype(np.float32)
    plain, matched = (_Given(states, rows, Request("target", match_states=one)) for one in (False, True))
    distance = 1 - torch.cosine_similarity(states[:, :-1], theirs[:, :-1, 0].float(), dim=-1).mean()
    added = matched.loss(batch, 0) - plain.loss(batch, 0)
    assert added.item() == pytest.approx(objective.STATES * distance.item(), rel=1e-3)
    assert matched.loss(batch, 0.6).item() == plain.loss(batch, 0.6).item()
    added.backward()
    assert matched.states.grad is not None
    assert (matched.states.grad * theirs[:, :, 0].float()).sum() < 0


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
    fit.write_json(curve, tmp_path / "curve.json")
    assert '"held_out_loss": 0.05' in (tmp_path / "curve.json").read_text()


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 8))
def test_acceptance_length_is_that_of_the_rounds(agrees: list[bool], lookahead: int) -> None:
    rounds = passes(agrees, lookahead, len(agrees) + lookahead + 1).target
    right = np.array([agrees] * lookahead)
    assert acceptance_length([right], lookahead) == pytest.approx(len(agrees) / rounds)
