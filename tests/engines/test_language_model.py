"""Logits of the bundled models: with either kind of cache they must be those of a pass over the whole text.

Only the target's are: the draft's int8 weights meet activations that are quantized on the fly, where the least
difference may round to another step. There, a verification must have the very bits of plain steps.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from specdemo.decoding.verification import Logits
from specdemo.engines.language_model import LanguageModel, draft_agreement
from specdemo.models.devices import multiplies_int8, properties
from specdemo.models.pairs import BUNDLED
from specdemo.settings import Precision, RuntimeSettings, Sampling

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


@pytest.mark.skipif(not multiplies_int8(), reason="this processor multiplies int8 as it does f32")
@pytest.mark.parametrize(("precision", "threads"), [("f32", 0), ("f32", 1), ("f32", 4), ("bf16", 0)])
def test_quantized_verifications_have_the_bits_of_plain_steps(precision: Precision, threads: int) -> None:
    runtime = RuntimeSettings(
        precision=precision, inference_num_threads=threads, dynamic_quantization="on", model_cache=False
    )
    model = LanguageModel(BUNDLED / "draft", "CPU", properties(runtime, "CPU"), per_token=True)
    random = np.random.default_rng(0)
    text, end = [int(token) for token in random.integers(1, 4000, 120)], 20
    plain, verifying = model.sequence(200), model.sequence(40)  # the second grows
    rows = {length: plain.logits(text[:length])[-1].copy() for length in range(end, len(text) + 1)}
    verifying.logits(text[: end // 2])  # however the prompt is split
    verifying.logits(text[:end])
    while end < len(text):
        count = min(int(random.integers(1, 7)), len(text) - end)
        wrong = [int(token) for token in random.integers(1, 4000, random.integers(0, 5))]
        found = verifying.logits([*text[: end + count], *wrong], count + len(wrong), int(random.integers(0, 16)))
        for length, row in enumerate(found[:count], end + 1):
            np.testing.assert_array_equal(row, rows[length])
        end += count


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
