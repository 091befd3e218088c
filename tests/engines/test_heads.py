"""DFlash drafts and multi-token-prediction heads: recognised by what their networks say; run or refused."""

import json
import shutil
from pathlib import Path

import openvino
import pytest
from openvino import opset13 as ops

from specdemo.engines import load_engine
from specdemo.engines.genai import GenAIEngine
from specdemo.errors import FolderError, PairError, SettingsError
from specdemo.measure.race import race, run_alone
from specdemo.models.checks import check_engine, check_pair, check_strategy
from specdemo.models.folder import inspect_folder
from specdemo.models.pairs import bundled_models, check_target, pair_of
from specdemo.records import Comparison, Model, ModelPair, Request
from specdemo.settings import GenerationSettings, RuntimeSettings, Sampling
from specdemo.strategies import Auto, Confidence, Constant, Lookup, Plain
from tests.support import dflash
from tests.support.folders import FIXTURES

TARGET = FIXTURES / "eagle3" / "target"
EXACT = {"precision": "f32", "model_cache": False}


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = json.loads((TARGET / "config.json").read_text())
    place = tmp_path_factory.mktemp("heads") / "block-draft"
    return dflash.write(place, TARGET, hidden=config["hidden_size"], vocabulary=config["vocab_size"])


def pair_with(draft: Path, **runtime: object) -> ModelPair:
    models = inspect_folder(TARGET), inspect_folder(draft, draft=True)
    return pair_of(*models, runtime=RuntimeSettings.checked(**EXACT | runtime))


def test_a_dflash_draft_is_known_by_its_runtime_information(draft: Path, tmp_path: Path) -> None:
    model = inspect_folder(draft, draft=True)
    assert (model.head, model.detokenizer, model.chat_template) == ("dflash", False, False)
    with pytest.raises(PairError, match=r"'block-draft' is a DFlash draft, which cannot generate text on its own"):
        check_target(model)
    bare = Path(shutil.copytree(draft, tmp_path / "bare"))
    (bare / "config.json").unlink()
    assert inspect_folder(bare, draft=True).head == "dflash", "no configuration is needed"


def test_a_dflash_draft_is_known_by_its_configuration(draft: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(draft, tmp_path / "other"))
    network = folder / "openvino_model.xml"
    network.write_text(network.read_text().replace("dflash_mode", "another_mode"))
    assert inspect_folder(folder, draft=True).head == "dflash"


@pytest.mark.openvino
@pytest.mark.parametrize("lookahead", [1, 3, 6])
def test_a_dflash_draft_decodes_and_outputs_stay_the_targets(draft: Path, lookahead: int) -> None:
    engine = load_engine("genai", pair_with(draft))
    settings = GenerationSettings(num_assistant_tokens=lookahead, max_new_tokens=40, ignore_eos=True)
    (comparison,) = (done for done in race(engine, "abc def ghi", settings) if isinstance(done, Comparison))
    engine.close()
    assert comparison.plain.token_ids == comparison.speculative.token_ids
    assert comparison.trace_source == "counts only"
    rounds = comparison.speculative.rounds[1:]
    assert any(len(step.committed) > 1 for step in rounds), "some proposals are accepted"
    for step in rounds[:-1]:
        assert step.proposed is not None
        assert len(step.proposed) <= lookahead
        assert len(step.committed) <= len(step.proposed) + 1


@pytest.mark.openvino
def test_prompt_lookup_works_beside_a_dflash_draft(draft: Path) -> None:
    engine = load_engine("genai", pair_with(draft))
    plain, copied = (
        run_alone(engine.decoder(Request("abc abc abc", strategy, max_new_tokens=16, ignore_eos=True)))
        for strategy in (Plain(), Lookup(3, 3))
    )
    engine.close()
    assert plain.token_ids == copied.token_ids


def test_what_a_dflash_draft_cannot_is_refused_before_loading(draft: Path) -> None:
    pair = pair_with(draft)
    check_strategy(pair, "genai", Constant(4), Sampling())
    for engine, strategy, sampling, reason in (
        ("genai", Constant(4), Sampling(do_sample=True), "works in greedy decoding only; switch sampling off"),
        (
            "genai",
            Confidence(0.4),
            Sampling(),
            "proposes a constant number of tokens",
        ),
        ("traced", Constant(4), Sampling(), "runs in the genai engine only; choose it"),
        ("traced", Auto(8), Sampling(), "runs in the genai engine only; choose it"),
    ):
        with pytest.raises((PairError, SettingsError), match=reason):
            check_strategy(pair, engine, strategy, sampling)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="without prefix caching; switch prefix caching off"):
        check_engine(pair_with(draft, enable_prefix_caching=True), "genai")


@pytest.mark.openvino
def test_a_dflash_draft_serves_one_request_at_a_time(draft: Path) -> None:
    engine = GenAIEngine(pair_with(draft))
    with pytest.raises(SettingsError, match="decodes one request at a time"):
        engine.batch(Constant(4))
    engine.close()


def test_which_engines_can_run_it_is_reported(draft: Path) -> None:
    report = check_pair(inspect_folder(TARGET), inspect_folder(draft, draft=True))
    can = {engine.engine: engine.can_run for engine in report.engines}
    assert (can, report.same_tokenizer) == ({"genai": True, "traced": False}, None)


@pytest.fixture
def mtp(tmp_path: Path) -> Path:
    """A network that says that it is a multi-token-prediction head; no such head can be made without its model."""
    x = ops.parameter([-1, 4], openvino.Type.f32)
    model = openvino.Model([ops.result(ops.relu(x))], [x])
    model.set_rt_info("True", ["mtp_mode"])
    folder = tmp_path / "head"
    openvino.save_model(model, folder / "openvino_model.xml")
    return folder


def test_a_multi_token_prediction_head_is_refused(mtp: Path) -> None:
    head = inspect_folder(mtp, draft=True)
    assert head.head == "mtp"
    target = bundled_models()[0]
    report = check_pair(target, head)
    assert not report.fits
    assert "choose a draft model or an EAGLE-3 head" in (report.reason or "")
    with pytest.raises(PairError, match="which GenAI runs only in pipelines that cannot be stepped"):
        check_engine(pair_of(target, head, runtime=RuntimeSettings()), "genai")


def gemma4_head(folder: Path) -> Path:
    """A network with the inputs by which GenAI knows Gemma 4's head; it computes nothing."""
    names = (
        "inputs_embeds",
        *(f"{kind}_attention_{part}" for kind in ("full", "sliding") for part in ("key", "value")),
    )
    inputs = [ops.parameter([-1, 4], openvino.Type.f32, name=name) for name in names]
    for each, name in zip(inputs, names, strict=True):
        each.output(0).set_names({name})
    openvino.save_model(openvino.Model([ops.result(ops.relu(each)) for each in inputs], inputs), folder)
    return folder.parent


@pytest.mark.parametrize("config", [None, {"model_type": "gemma4_assistant"}])
def test_gemma_4s_head_is_known_by_its_inputs(tmp_path: Path, config: dict[str, str] | None) -> None:
    folder = gemma4_head(tmp_path / "openvino_model.xml")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    head = inspect_folder(folder, draft=True)
    assert head.head == "mtp"
    with pytest.raises(PairError, match=r"for Gemma 4, one without continuous batching\); choose a draft model"):
        check_engine(pair_of(bundled_models()[0], head, runtime=RuntimeSettings()), "genai")


def test_gemma_4s_head_is_known_by_its_configuration(mtp: Path) -> None:
    network = mtp / "openvino_model.xml"
    network.write_text(network.read_text().replace("mtp_mode", "another_mode"))
    config = {"model_type": "gemma4_assistant", "architectures": ["Gemma4AssistantForCausalLM"]}
    (mtp / "config.json").write_text(json.dumps(config))
    assert inspect_folder(mtp, draft=True).head == "mtp"


def test_an_export_in_parts_with_such_a_head_says_what_to_do(tmp_path: Path) -> None:
    for name in ("openvino_language_model", "openvino_text_embeddings_model", "openvino_mtp_model"):
        (tmp_path / f"{name}.xml").write_text("<net/>")
    with pytest.raises(FolderError, match=r"multi-token-prediction head.* export its language model alone"):
        inspect_folder(tmp_path)


def linear(target: Model) -> Model:
    return target.model_copy(update={"linear_attention": True})


def test_linear_attention_is_known_by_the_configuration(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(TARGET, tmp_path / "target"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"layer_types": ["linear_attention", "full_attention"]}))
    assert inspect_folder(folder).linear_attention
    assert not inspect_folder(TARGET).linear_attention


def test_targets_with_linear_attention_take_a_constant_lookahead_without_prefix_caching() -> None:
    target, draft = bundled_models()
    pair = pair_of(linear(target), draft, runtime=RuntimeSettings())
    check_strategy(pair, "genai", Constant(4), Sampling())
    check_strategy(pair, "genai", Plain(), Sampling())
    with pytest.raises(SettingsError, match="with a constant lookahead; choose policy constant"):
        check_strategy(pair, "genai", Confidence(0.4), Sampling())
    caching = pair_of(linear(target), draft, runtime=RuntimeSettings(enable_prefix_caching=True))
    with pytest.raises(SettingsError, match="without prefix caching; switch prefix caching off"):
        check_strategy(caching, "genai", Constant(4), Sampling())


def test_records_of_earlier_versions_know_eagle_heads() -> None:
    written = {"name": "x", "architecture": "llama", "parameters": 1, "weights": "int8", "eagle3": True}
    assert Model.model_validate(written).head == "eagle3"
    assert Model.model_validate({**written, "eagle3": False}).head is None
