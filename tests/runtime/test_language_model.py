"""Logits of the bundled target: with either kind of cache they must be those of a pass over the whole text.

The draft would not do: its int8 weights meet activations that are quantised on the fly, where the least difference
may round to another step.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from specdemo.decoding.verification import Logits
from specdemo.models.devices import properties
from specdemo.models.pairs import BUNDLED
from specdemo.runtime.language_model import LanguageModel, draft_agreement
from specdemo.settings import RuntimeSettings, Sampling

pytestmark = pytest.mark.openvino


@pytest.fixture(scope="module", params=["paged", "stateful"])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    paged = request.param == "paged"
    model = LanguageModel(
        BUNDLED / "target", "CPU", properties(RuntimeSettings(precision="f32", model_cache=False), "CPU"), paged=paged
    )
    assert model.paged == paged
    return model


def test_a_cache_changes_nothing(model: LanguageModel) -> None:
    random = np.random.default_rng(0)
    cached = [model.sequence(700), model.sequence(40)]  # the second grows, and is built anew
    whole = model.sequence(700, kv_cache=False)
    text = [int(token) for token in random.integers(1, 4000, 20)]
    for _ in range(25):  # keep some, add some, ask for the last few: what rounds of speculation do
        text = text[: max(len(text) - int(random.integers(0, 9)), 1)]
        text += [int(token) for token in random.integers(1, 4000, random.integers(1, 17))]
        last = int(random.integers(1, min(len(text), 17)))
        expected = whole.logits(text, last).copy()
        assert expected.shape == (last, model.vocabulary)
        width = int(random.integers(0, 30))  # what is fed beyond the text must not count
        for sequence in cached:
            np.testing.assert_allclose(sequence.logits(text, last, width), expected, atol=2e-4)


def test_a_long_text_is_fed_in_chunks(model: LanguageModel) -> None:
    text = [int(token) for token in np.random.default_rng(1).integers(1, 4000, 600)]
    step_by_step, at_once = model.sequence(600), model.sequence(600)
    for end in range(50, 600, 50):
        step_by_step.logits(text[:end])
    np.testing.assert_allclose(at_once.logits(text, 5), step_by_step.logits(text, 5), atol=2e-4)


def test_sequences_of_one_model_do_not_disturb_each_other(model: LanguageModel) -> None:
    one, other = model.sequence(64), model.sequence(64)
    alone = model.sequence(64).logits([1, 2, 3, 4]).copy()
    one.logits([1, 2, 3])
    other.logits([9, 8, 7, 6, 5])
    np.testing.assert_allclose(one.logits([1, 2, 3, 4]), alone, atol=2e-4)


def test_a_model_agrees_with_its_own_greedy_text(model: LanguageModel) -> None:
    text = [5, 6, 7]
    sequence = model.sequence(64)
    while len(text) < 40:
        text.append(int(sequence.logits(text)[0].argmax()))
    settings = Sampling()
    assert all(draft_agreement(model.sequence(64), text, 3, settings))
    text[20] = (text[20] + 1) % model.vocabulary
    assert draft_agreement(model.sequence(64), text, 3, settings).index(False) == 17


def test_a_draft_with_more_or_fewer_logits_is_compared_among_the_targets_tokens() -> None:
    class Fixed:
        def __init__(self, *row: float) -> None:
            self.row = np.array(row, np.float32)

        def logits(self, ids: Sequence[int], last: int = 1, width: int = 0) -> Logits:
            return np.tile(self.row, (last, 1))

        def read(self, ids: Sequence[int]) -> Iterator[int]:
            return iter(())

        def shared(self, ids: Sequence[int]) -> int:
            return 0

    settings = Sampling(repetition_penalty=1.5)
    assert draft_agreement(Fixed(3, 1, 9), [1, 0, 0], 1, settings, 2) == (True, True)
    assert draft_agreement(Fixed(3, 1), [2, 0, 1], 1, settings, 3) == (True, False)


def test_only_a_paged_model_is_fed_singly(model: LanguageModel) -> None:
    assert model.paged or not model.feeds_singly
