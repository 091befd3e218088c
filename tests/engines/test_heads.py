"""DFlash drafts and multi-token-prediction heads: recognised by their networks, then run or refused."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from specdemo.capabilities import EngineName
from specdemo.engines.genai.engine import GenAIEngine
from specdemo.errors import FolderError, PairError, PromptError, SettingsError
from specdemo.models.catalogue import bundled_models, check_target, pair_of
from specdemo.models.checks import check_engine, check_pair, check_strategy, drafts_for, is_recommended
from specdemo.models.folder import inspect_folder, own_head
from specdemo.models.library import library
from specdemo.racing.race import run_alone
from specdemo.records import Comparison, ModelPair, Request
from specdemo.settings import GenerationSettings, RuntimeSettings, Sampling
from specdemo.strategies import Confidence, Constant, Lookup, Plain, Strategy
from tests.support import BRIEF, dflash
from tests.support.folders import FIXTURES
from tests.support.proposals import raced

TARGET = FIXTURES / "eagle3" / "target"
MTP = FIXTURES / "mtp"
PROMPT = "abc def ghi the model"
EXACT = {"precision": "f32", "model_cache": False}


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = json.loads((TARGET / "config.json").read_text())
    place = tmp_path_factory.mktemp("heads") / "block-draft"
    return dflash.write(place, TARGET, hidden=config["hidden_size"], vocabulary=config["vocab_size"])


def pair_with(draft: Path, **runtime: object) -> ModelPair:
    models = inspect_folder(TARGET), inspect_folder(draft)
    return pair_of(*models, runtime=RuntimeSettings.checked(**EXACT | runtime))


def test_a_dflash_draft_is_known_by_its_runtime_information_or_its_configuration(draft: Path, tmp_path: Path) -> None:
    model = inspect_folder(draft)
    assert (model.head, model.chat_template) == ("dflash", False)
    with pytest.raises(PairError, match=r"'block-draft' is a DFlash draft, which cannot generate text on its own"):
        check_target(model)
    bare = Path(shutil.copytree(draft, tmp_path / "bare"))
    (bare / "config.json").unlink()
    assert inspect_folder(bare).head == "dflash", "no configuration is needed"
    shutil.copy(draft / "config.json", bare)
    network = bare / "openvino_model.xml"
    network.write_text(network.read_text().replace("dflash_mode", "another_mode"))
    assert inspect_folder(bare).head == "dflash"


@pytest.fixture(scope="module")
def dflash_engine(draft: Path) -> Iterator[GenAIEngine]:
    with closing(GenAIEngine(pair_with(draft), thoroughness=BRIEF)) as engine:
        yield engine


def exact_race(engine: GenAIEngine, prompt: str, lookahead: int) -> Comparison:
    settings = GenerationSettings(num_assistant_tokens=lookahead, max_new_tokens=40, ignore_eos=True)
    comparison = raced(engine, prompt, settings)
    assert comparison.plain.token_ids == comparison.speculative.token_ids, "outputs stay the target's"
    assert comparison.trace_source == "counts only"
    return comparison


@pytest.mark.openvino
@pytest.mark.parametrize("lookahead", [1, 6])
def test_a_dflash_draft_decodes(dflash_engine: GenAIEngine, lookahead: int) -> None:
    rounds = exact_race(dflash_engine, "abc def ghi", lookahead).speculative.rounds[1:]
    assert any(len(step.committed) > 1 for step in rounds), "some proposals are accepted"
    for step in rounds[:-1]:
        assert step.proposed is not None
        assert len(step.proposed) <= lookahead
        assert len(step.committed) <= len(step.proposed) + 1


@pytest.mark.openvino
def test_a_dflash_pair_supports_prompt_lookup_but_no_batch(dflash_engine: GenAIEngine) -> None:
    plain, copied = (
        run_alone(dflash_engine.decoder(Request("abc abc abc", strategy, max_new_tokens=16, ignore_eos=True)))
        for strategy in (Plain(), Lookup(3, 3))
    )
    assert plain.token_ids == copied.token_ids
    with pytest.raises(SettingsError, match="decodes one request at a time"):
        dflash_engine.batch(Constant(4))


def mtp_pair(**runtime: object) -> ModelPair:
    return pair_of(inspect_folder(MTP), runtime=RuntimeSettings.checked(**EXACT | runtime))


def test_a_model_in_parts_drafts_with_its_own_head() -> None:
    model = inspect_folder(MTP)
    assert (model.in_parts, model.linear_attention, model.head) == (True, True, None)
    assert model.weight_bytes == (MTP / "openvino_language_model.bin").stat().st_size
    pair = mtp_pair()
    assert pair.draft is not None
    assert (pair.draft.name, pair.head, pair.draft_kind) == ("mtp/mtp", "mtp", "mtp")
    assert pair.draft.weight_bytes == (MTP / "openvino_mtp_model.bin").stat().st_size
    assert pair_of(model, model, runtime=pair.runtime) == pair, "its folder as the draft means the head in it"


def test_a_folder_of_parts_is_listed_with_its_head(tmp_path: Path) -> None:
    shutil.copytree(MTP, tmp_path / "qwen")
    models = {model.name: model for model in library(tmp_path).models}
    target, head = models["qwen"], models["qwen/mtp"]
    assert drafts_for(target, models.values()) == [head]
    assert is_recommended(head, target)
    other = next(model for model in models.values() if not model.in_parts and not model.head)
    assert head not in drafts_for(other, models.values())
    with pytest.raises(PairError, match="is a multi-token-prediction head, which cannot generate text on its own"):
        check_target(head)


@pytest.fixture(scope="module")
def mtp_engine() -> Iterator[GenAIEngine]:
    with closing(GenAIEngine(mtp_pair(), thoroughness=BRIEF)) as engine:
        yield engine


@pytest.mark.openvino
@pytest.mark.parametrize("lookahead", [1, 3])
def test_a_multi_token_prediction_head_decodes(mtp_engine: GenAIEngine, lookahead: int) -> None:
    rounds = exact_race(mtp_engine, PROMPT, lookahead).speculative.rounds
    assert sum(step.accepted or 0 for step in rounds) > 0, "some proposals are right"


@pytest.mark.openvino
def test_prompts_in_parts_are_prefilled_whole_and_alike(mtp_engine: GenAIEngine) -> None:
    """Chunks of a long prompt would separate the head's states from its tokens."""
    long = " ".join(["abc def"] * 60)
    plain, speculative = (
        run_alone(mtp_engine.decoder(Request(long, strategy, max_new_tokens=24, ignore_eos=True)))
        for strategy in (Plain(), Constant(3))
    )
    assert plain.token_ids == speculative.token_ids


@pytest.mark.openvino
def test_a_typed_special_token_is_refused_where_genai_takes_texts(mtp_engine: GenAIEngine) -> None:
    with pytest.raises(PromptError, match="holds a special token as text"):
        run_alone(mtp_engine.decoder(Request("abc <|im_start|> def", Plain(), max_new_tokens=4)))
    with pytest.raises(PromptError, match="at least two tokens"):
        run_alone(mtp_engine.decoder(Request("a", Constant(2), max_new_tokens=4, apply_chat_template=False)))


GREEDY, SAMPLED = Sampling(), Sampling(do_sample=True)


def test_what_a_head_cannot_do_is_refused_before_loading(draft: Path) -> None:
    block, mtp, greedy_only = pair_with(draft), mtp_pair(), "works in greedy decoding only; switch sampling off"
    for pair in (block, mtp):
        check_strategy(pair, "genai", Constant(4), GREEDY)
    check_strategy(mtp, "genai", Plain(), SAMPLED)
    refused: list[tuple[ModelPair, EngineName, Strategy, Sampling, str]] = [
        (block, "genai", Constant(4), SAMPLED, greedy_only),
        (block, "genai", Confidence(0.4), GREEDY, "proposes a constant number of tokens"),
        (block, "traced", Constant(4), GREEDY, "runs in the genai engine only; choose it"),
        (mtp, "genai", Constant(4), SAMPLED, greedy_only),
        (mtp, "genai", Confidence(0.4), GREEDY, "needs a constant lookahead for a target with linear attention"),
        (mtp, "genai", Lookup(3, 3), GREEDY, "no prompt lookup for a model exported in parts"),
        (mtp, "traced", Constant(4), GREEDY, "choose the genai engine and that head as the draft"),
    ]
    for pair, engine, strategy, sampling, reason in refused:
        with pytest.raises((PairError, SettingsError), match=reason):
            check_strategy(pair, engine, strategy, sampling)
    for pair in (pair_with(draft, enable_prefix_caching=True), mtp_pair(enable_prefix_caching=True)):
        with pytest.raises(SettingsError, match="without prefix caching; switch prefix caching off"):
            check_engine(pair, "genai")
    lazy = GenAIEngine(mtp, side="speculative", thoroughness=BRIEF)
    for strategy in (Constant(4), Plain()):
        with pytest.raises(SettingsError, match="head decodes one request at a time"):
            lazy.batch(strategy)


def test_a_head_drafts_only_for_its_own_model() -> None:
    (target, _), model = bundled_models(), inspect_folder(MTP)
    stranger = pair_of(target, own_head(model), runtime=RuntimeSettings())
    with pytest.raises(PairError, match="drafts for the model that it was exported with"):
        check_engine(stranger, "genai")
    with pytest.raises(PairError, match="choose the genai engine and that head as the draft"):
        check_engine(pair_of(model, bundled_models()[1], runtime=RuntimeSettings()), "genai")
    report = check_pair(model, own_head(model))
    assert {engine.engine: engine.can_run for engine in report.engines} == {"genai": True, "traced": False}


def test_an_export_that_lacks_a_part_says_which(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(MTP, tmp_path / "part"))
    (folder / "openvino_text_embeddings_model.bin").unlink()
    with pytest.raises(FolderError, match=r"'part' lacks openvino_text_embeddings_model\.bin; copy the whole folder"):
        inspect_folder(folder)
    (folder / "openvino_mtp_model.xml").unlink()
    with pytest.raises(FolderError, match="export its language model alone"):
        inspect_folder(folder)
