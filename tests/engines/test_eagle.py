"""Both engines with an EAGLE-3 head, on the tiny pair that `fixtures/make_eagle.py` made."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from specdemo.engines.genai.engine import GenAIEngine
from specdemo.engines.language_model import HeadModel, LanguageModel, add_states_output
from specdemo.engines.sequences import Layout
from specdemo.engines.traced.engine import TracedEngine
from specdemo.errors import FolderError, PairError, SettingsError
from specdemo.models.catalogue import BUNDLED
from specdemo.models.devices import properties
from specdemo.models.folder import inspect_folder
from specdemo.records import Run
from specdemo.settings import RuntimeSettings
from tests.support import BRIEF
from tests.support.folders import pair_from_folders
from tests.support.proposals import proposals
from tests.support.runs import check_counters, plain, speculate

pytestmark = pytest.mark.openvino
FOLDER = Path(__file__).parents[1] / "fixtures" / "eagle3"
F32 = RuntimeSettings(precision="f32")
EXACT = properties(F32, "CPU")
PROMPT = "Does speculative decoding help"
CHAIN: dict[str, Any] = {"num_assistant_tokens": 5}


@pytest.fixture(scope="module")
def eagle() -> Iterator[GenAIEngine]:
    pair = pair_from_folders(FOLDER / "target", FOLDER / "draft", F32)
    with closing(GenAIEngine(pair, thoroughness=BRIEF)) as engine:
        yield engine


@pytest.fixture(scope="module")
def traced(eagle: GenAIEngine) -> Iterator[TracedEngine]:
    with closing(TracedEngine(eagle.pair, thoroughness=BRIEF)) as engine:
        yield engine


@pytest.mark.parametrize("tokens", [2, 4, 33, 64])
def test_greedy_output_is_that_of_the_target_alone(eagle: GenAIEngine, tokens: int) -> None:
    run = speculate(eagle, PROMPT, max_new_tokens=tokens, **CHAIN)
    assert run.token_ids == plain(eagle, PROMPT, max_new_tokens=tokens).token_ids
    assert len(run.token_ids) == tokens
    assert run.finish_reason == "length"
    assert tokens < 64 or len(run.rounds) < 63, "the head is right sometimes"


def test_a_head_proposes_the_same_in_every_layout_and_keeps_to_its_vocabulary() -> None:
    found = list[npt.NDArray[np.float32]]()
    layouts: tuple[Layout, ...] = ("joined", "empty_sequence", "second_token")
    for layout in layouts:
        target = LanguageModel(FOLDER / "target", "CPU", EXACT, adapt=add_states_output)
        head = HeadModel(FOLDER / "draft", "CPU", EXACT, (), ())
        for model in (target, head.model):
            model.use_layout(layout)
        head.model.compile_lengths((2,) if layout == "joined" else (1, 2))
        states, text = target.sequence(40), list(range(1, 12))
        sequence = head.sequence(states, 40)
        for read, end in ((4, 4), (5, 6), (7, 8), (7, 9), (11, 11)):  # the target lags behind by up to two tokens
            states.logits(text[:read])
            found.append(sequence.logits(text[:end])[-1].copy())
        assert found[-1].shape == head.tokens.shape
    for first, second, third in zip(found[:5], found[5:10], found[10:], strict=True):
        np.testing.assert_allclose(second, first, atol=1e-3)
        np.testing.assert_allclose(third, first, atol=1e-3)


def test_rounds_agree_with_the_counters_of_genai(eagle: GenAIEngine) -> None:
    check_counters(eagle, PROMPT, **CHAIN)


def test_unsupported_combinations_are_refused(eagle: GenAIEngine) -> None:
    with pytest.raises(SettingsError, match="not support policy confidence; choose policy constant, or the traced"):
        speculate(eagle, PROMPT, policy="confidence")
    with pytest.raises(SettingsError, match="not support a repetition penalty; set repetition_penalty to 1, or"):
        speculate(eagle, PROMPT, repetition_penalty=1.2)


@pytest.mark.parametrize("tokens", [1, 3, 5])
def test_in_the_traced_engine_rounds_are_those_of_genai(
    eagle: GenAIEngine, traced: TracedEngine, tokens: int
) -> None:
    ours, theirs = (speculate(engine, PROMPT, num_assistant_tokens=tokens) for engine in (traced, eagle))
    assert committed(ours) == committed(theirs)
    drafts = [draft for step in ours.rounds for draft in proposals(step)]
    assert all(draft.id is not None and draft.draft_probability is not None for draft in drafts)


@pytest.mark.parametrize(
    "values",
    [
        {"policy": "confidence", "assistant_confidence_threshold": 0.2},
        {"repetition_penalty": 1.2},
        {"kv_cache": "off"},
        {"prompt": "a"},
        {"prompt": PROMPT * 40},
    ],
    ids=["confidence", "penalty", "no cache", "one token", "long prompt"],
)
def test_the_traced_engine_runs_a_head_with_every_policy(traced: TracedEngine, values: dict[str, Any]) -> None:
    values = {"prompt": PROMPT, "max_new_tokens": 24, **values}
    run = speculate(traced, **values)
    assert run.token_ids == plain(traced, **values).token_ids
    assert any(step.accepted for step in run.rounds)


def test_prefix_caching_keeps_the_states_of_a_text(eagle: GenAIEngine, traced: TracedEngine) -> None:
    keeping = F32.model_copy(update={"enable_prefix_caching": True})
    with closing(TracedEngine(eagle.pair.model_copy(update={"runtime": keeping}), thoroughness=BRIEF)) as engine:
        for _ in range(4):  # more often than there are caches
            assert committed(speculate(engine, PROMPT)) == committed(speculate(traced, PROMPT))


def test_a_head_drafts_without_paged_attention(eagle: GenAIEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("openvino._offline_transformations.paged_attention_transformation", fail)
    with closing(TracedEngine(eagle.pair, thoroughness=BRIEF)) as engine:
        assert committed(speculate(engine, PROMPT)) == committed(speculate(eagle, PROMPT))


def committed(run: Run) -> list[list[int]]:
    return [step.ids for step in run.rounds]


def test_a_head_that_does_not_fit_is_refused_by_the_traced_engine(eagle: GenAIEngine) -> None:
    for target in (BUNDLED / "target", FOLDER.parent / "llama" / "target"):
        pair = eagle.pair.model_copy(update={"target": inspect_folder(target)})
        with pytest.raises(PairError, match="choose the target it was trained for"):
            TracedEngine(pair)


def test_a_head_needs_its_weights_but_no_tokenizer(tmp_path: Path, eagle: GenAIEngine) -> None:
    head = Path(shutil.copytree(FOLDER / "draft", tmp_path / "head"))
    for file in [*head.glob("*tokenizer*"), head / "generation_config.json"]:
        file.unlink()
    assert inspect_folder(head).head == "eagle3"
    with closing(GenAIEngine(pair_from_folders(FOLDER / "target", head, F32), thoroughness=BRIEF)) as engine:
        assert speculate(engine, PROMPT).token_ids == speculate(eagle, PROMPT).token_ids
    (head / "openvino_model.bin").unlink()
    with pytest.raises(FolderError, match=r"lacks openvino_model\.bin; copy the whole folder again"):
        inspect_folder(head)
