"""Logits of the bundled models equal those of a pass over the whole text, with either kind of cache.

Only the target's: the draft's int8 weights meet activations quantized on the fly, where the least difference may
round to another step. There, a verification must have the very bits of plain steps.
"""

from unittest.mock import Mock

import numpy as np
import pytest

from specdemo.engines.language_model import LanguageModel, ReducedVocabulary
from specdemo.engines.sequences import Layout, PagedSequence
from specdemo.files import ASSETS
from specdemo.models.catalogue import BUNDLED
from specdemo.models.devices import properties
from specdemo.settings import RuntimeSettings

LAYOUTS: tuple[Layout, ...] = ("empty_sequence", "second_token")

pytestmark = pytest.mark.openvino

F32 = properties(RuntimeSettings(precision="f32"), "CPU")
QUANTIZED = properties(RuntimeSettings(precision="f32", dynamic_quantization="on"), "CPU")


@pytest.fixture(scope="module", params=["paged", "stateful", "fixed"])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    paged = request.param != "stateful"
    model = LanguageModel(BUNDLED / "target", "CPU", F32, paged=paged)
    if request.param == "fixed":
        model.compile_lengths((1, 2, 5))
    assert model.paged == paged
    return model


def test_a_cache_changes_nothing(model: LanguageModel) -> None:
    random = np.random.default_rng(0)
    cached = [model.sequence(700), model.sequence(40)]  # the second grows and is rebuilt
    whole = model.sequence(700, kv_cache=False)
    text = [int(token) for token in random.integers(1, 4000, 20)]
    for _ in range(25):  # keep some tokens, add some, ask for the last few, as speculative rounds do
        text = text[: max(len(text) - int(random.integers(0, 9)), 1)]
        text += [int(token) for token in random.integers(1, 4000, random.integers(1, 17))]
        last = int(random.integers(1, min(len(text), 17)))
        expected = whole.logits(text, last).copy()
        assert expected.shape == (last, model.vocabulary)
        for sequence in cached:
            np.testing.assert_allclose(sequence.logits(text, last), expected, atol=2e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_passes_of_fixed_length_give_identical_results(layout: Layout) -> None:
    """Quantize activations in either layout on any processor."""
    dynamic = LanguageModel(BUNDLED / "draft", "CPU", QUANTIZED)
    fixed = LanguageModel(BUNDLED / "draft", "CPU", QUANTIZED)
    for model in (dynamic, fixed):
        model.layout = layout
    fixed.compile_lengths((1, 3))
    text = list(range(1, 60))
    sequences = [model.sequence(20) for model in (dynamic, fixed)]  # both grow
    end = 4
    for count in (1, 3, 2, 1, 3, 3, 1, 5, 1) * 2:
        end += count
        expected, actual = (sequence.logits(text[:end], count) for sequence in sequences)
        np.testing.assert_array_equal(actual, expected)


def test_a_layout_is_used_if_longer_passes_agree_with_plain_steps_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = LanguageModel(BUNDLED / "draft", "CPU", QUANTIZED, layouts=LAYOUTS)
    assert chosen.layout in ("empty_sequence", "second_token", None)
    if chosen.layout is not None:  # true on every processor so far; longer texts and other lengths than in the trial
        random = np.random.default_rng(0)
        text, end = [int(token) for token in random.integers(1, 4000, 120)], 20
        plain, verifying = chosen.sequence(200), chosen.sequence(40)
        rows = {length: plain.logits(text[:length])[-1].copy() for length in range(end, len(text) + 1)}
        verifying.logits(text[: end // 2])  # for any split of the prompt
        verifying.logits(text[:end])
        while end < len(text):
            count = min(int(random.integers(1, 7)), len(text) - end)
            wrong = [int(token) for token in random.integers(1, 4000, random.integers(0, 5))]
            verified = verifying.logits([*text[: end + count], *wrong], count + len(wrong))
            for length, row in enumerate(verified[:count], end + 1):
                np.testing.assert_array_equal(row, rows[length])
            end += count

    tried: list[Layout] = []

    def fails(model: LanguageModel, layout: Layout) -> bool:
        tried.append(layout)
        return False

    monkeypatch.setattr(LanguageModel, "repeats_bits", fails)
    assert LanguageModel(BUNDLED / "draft", "CPU", QUANTIZED, layouts=LAYOUTS).layout is None
    assert tried == [*LAYOUTS]
    exact = F32 | {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    assert LanguageModel(BUNDLED / "draft", "CPU", exact, layouts=LAYOUTS).layout == "joined"


def test_the_trial_finds_passes_that_round_differently_or_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention over several tokens rounds differently, and quantization amplifies that."""
    model = LanguageModel(BUNDLED / "draft", "CPU", QUANTIZED)
    assert not model.repeats_bits("joined")
    monkeypatch.setattr(PagedSequence, "logits", Mock(side_effect=RuntimeError("no kernel")))
    assert not model.repeats_bits("second_token")


def test_a_long_text_is_fed_in_chunks(model: LanguageModel) -> None:
    text = [int(token) for token in np.random.default_rng(1).integers(1, 4000, 600)]
    step_by_step, at_once = model.sequence(600), model.sequence(600)
    for end in range(50, 600, 50):
        step_by_step.logits(text[:end])
    np.testing.assert_allclose(at_once.logits(text, 5), step_by_step.logits(text, 5), atol=2e-4)


def test_a_drafts_own_tokens_have_the_logits_of_the_wide_output() -> None:
    folder, reduced = ASSETS / "smollm2-draft", ReducedVocabulary()
    narrow, wide = LanguageModel(folder, "CPU", F32, adapt=reduced), LanguageModel(folder, "CPU", F32)
    assert reduced.tokens is not None
    assert (narrow.vocabulary, wide.vocabulary) == (len(reduced.tokens), 49152)
    few, many = (model.sequence(16).logits([1, 2, 3])[0] for model in (narrow, wide))
    np.testing.assert_array_equal(few, many[reduced.tokens])
    others = np.delete(many, reduced.tokens)
    assert others.max() < few.min() or others.max() == -10000
