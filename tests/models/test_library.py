"""The catalogue, the models on this machine, and what is said of a pair before it is loaded."""

import shutil
from pathlib import Path

import pytest

from specdemo.engines.base import BRIEF
from specdemo.errors import FolderError, PairError, UnknownNameError
from specdemo.models import checks
from specdemo.models.catalogue import catalogue, find
from specdemo.models.checks import check_pair
from specdemo.models.folder import inspect_folder
from specdemo.models.library import Library, entry_folders, find_model, library, models_in
from specdemo.models.pairs import BUNDLED, bundled_pair
from specdemo.records import Model, Request
from specdemo.settings import RuntimeSettings
from specdemo.ui.parts import report_html

FIXTURES = Path(__file__).parents[1] / "fixtures"
GB = 2**30
BUNDLED_NAMES = ["story-pair/target", "story-pair/draft", "smollm2-draft", "smollm2-head"]


@pytest.fixture(autouse=True)
def nothing_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPECDEMO_MODELS", raising=False)


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    """A models directory: a model, another in an organisation's folder, half of one, and a conversion under way."""
    directory = tmp_path / "models"
    shutil.copytree(FIXTURES / "gpt2" / "target", directory / "mine")
    shutil.copytree(FIXTURES / "qwen3" / "draft", directory / "org" / "small")
    shutil.copytree(FIXTURES / "qwen3" / "draft", directory / "half")
    (directory / "half" / "openvino_model.bin").unlink()
    shutil.copytree(FIXTURES / "qwen3" / "draft", directory / ".converting-x" / "exported")
    (directory / "notes.txt").touch()
    return directory


def cached(repository: str, source: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "hub" / f"models--{repository.replace('/', '--')}" / "snapshots" / "abc"
    return Path(shutil.copytree(source, folder))


def test_the_catalogue_has_every_pair_and_the_bundled_ones_first() -> None:
    entries = catalogue()
    assert [entry.name for entry in entries[:3]] == ["smollm2", "story-pair", "smollm2-eagle3"]
    assert len({entry.name for entry in entries}) == len(entries) == 17
    repositories = {source.repository for entry in entries for source in entry.sources}
    assert {
        "OpenVINO/dolly-v2-7b-int8-ov", "OpenVINO/dolly-v2-3b-int4-ov", "OpenVINO/Qwen3-8B-int4-ov",
        "OpenVINO/Phi-3-mini-4k-instruct-int4-ov", "OpenVINO/Phi-3-mini-FastDraft-50M-int8-ov",
        "OpenVINO/Llama-3.1-8B-Instruct-FastDraft-150M-int8-ov", "facebook/opt-6.7b", "openai-community/gpt2-xl",
        "databricks/dolly-v2-12b", "meta-llama/Llama-2-13b-hf", "EleutherAI/pythia-1.4b-deduped",
        "Salesforce/codegen-6B-mono",
    } <= repositories  # fmt: skip
    assert [entry.name for entry in entries if entry.kind == "eagle3"] == ["smollm2-eagle3", "qwen3-8b-eagle3"]


def test_what_is_not_supported_says_why_and_what_is_published_says_where() -> None:
    for entry in catalogue():
        assert entry.supported == (entry.reason is None)
        assert entry.published is None or entry.published.url.startswith("https://")
        assert entry.memory_bytes > entry.disk_bytes
    assert "none is published" in (find("qwen3.5-2b-mtp").reason or "")


def test_models_of_a_directory(registry: Path) -> None:
    models, unusable = models_in(registry)
    assert [(model.name, model.architecture) for model in models] == [("mine", "gpt2"), ("org/small", "qwen3")]
    assert [(folder.name, folder.reason) for folder in unusable] == [
        ("half", "The folder 'half' lacks openvino_model.bin; copy the whole folder again.")
    ]


def test_the_library_has_everything_once(registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [model.name for model in library().models] == BUNDLED_NAMES
    cached("org/small", FIXTURES / "qwen3" / "target", tmp_path)
    half = cached("org/half", FIXTURES / "qwen3" / "target", tmp_path)
    (half / "openvino_model.bin").write_bytes(b"")
    monkeypatch.setenv("SPECDEMO_MODELS", str(registry))
    names = [model.name for model in library().models]
    assert names == [*BUNDLED_NAMES, "org/small", "mine", "org/small (2)"]
    assert find_model("org/small (2)").path == registry / "org" / "small"
    assert library() == library(registry)


def test_a_target_without_a_draft_is_shown_how_to_get_one() -> None:
    pair = bundled_pair()
    target, draft = pair.target, pair.draft
    assert "docs/drafts.md" not in report_html(check_pair(target, draft))
    assert "docs/drafts.md" in report_html(check_pair(target, None))


@pytest.mark.parametrize("name", ["nothing", "../models/mine", "/etc", "", ".", "org/../mine"])
def test_a_name_is_never_a_path(name: str, registry: Path) -> None:
    with pytest.raises(UnknownNameError, match="Unknown model"):
        find_model(name, registry)


def test_no_path_leaves_this_machine(registry: Path) -> None:
    written = library(registry).model_dump_json()
    assert str(registry) not in written
    assert Library.model_validate_json(written).models[0].path is None


def test_a_pair_of_the_catalogue_is_ready_once_both_are_here(tmp_path: Path) -> None:
    entry = find("dolly-v2-7b")
    assert entry_folders(entry) == (None, None)
    cached("OpenVINO/dolly-v2-7b-int8-ov", FIXTURES / "llama" / "target", tmp_path)
    assert entry_folders(entry)[1] is None
    cached("OpenVINO/dolly-v2-3b-int4-ov", FIXTURES / "llama" / "draft", tmp_path)
    here = {model.path: model.name for model in library().models}
    assert [here[folder] for folder in entry_folders(entry)] == [source.repository for source in entry.sources]
    converted = find("opt-6.7b")
    shutil.copytree(FIXTURES / "qwen3" / "target", tmp_path / "cache" / "specdemo" / "models" / "opt-6.7b-int8-ov")
    shutil.copytree(FIXTURES / "qwen3" / "draft", tmp_path / "cache" / "specdemo" / "models" / "opt-125m-int8-ov")
    assert None not in entry_folders(converted)
    assert None not in entry_folders(find("story-pair"))


def family(name: str, role: str) -> Model:
    return inspect_folder(FIXTURES / name / role)


def test_a_pair_with_different_tokenizers_is_for_the_traced_engine() -> None:
    report = check_pair(inspect_folder(BUNDLED / "target"), family("llama", "draft"))
    assert (report.fits, report.same_tokenizer) == (True, False)
    assert {engine.engine: engine.can_run for engine in report.engines} == {"genai": False, "traced": True}
    assert "different tokenizers" in (report.reason or "")


def without_detokenizer(source: Path, tmp_path: Path) -> Model:
    folder = Path(shutil.copytree(source, tmp_path / "fast"))
    for file in folder.glob("openvino_detokenizer.*"):
        file.unlink()
    return inspect_folder(folder, draft=True)


def test_a_draft_without_detokenizer_is_compared_by_example(tmp_path: Path) -> None:
    draft = without_detokenizer(FIXTURES / "llama" / "draft", tmp_path)
    assert check_pair(family("llama", "target"), draft).same_tokenizer
    other = check_pair(inspect_folder(BUNDLED / "target"), draft)
    assert (other.fits, other.same_tokenizer) == (False, False)
    assert "choose a draft of the target's family" in (other.reason or "")
    with pytest.raises(FolderError, match="it can only be a draft"):
        check_pair(draft, None)


@pytest.mark.openvino
@pytest.mark.parametrize("engine_name", ["genai", "traced"])
def test_a_draft_without_detokenizer_drafts(engine_name: str, tmp_path: Path) -> None:
    from specdemo.engines import load_engine
    from specdemo.models.pairs import pair_of
    from specdemo.race import run_alone
    from specdemo.settings import GenerationSettings

    runtime, settings = RuntimeSettings(precision="f32"), GenerationSettings(engine=engine_name, max_new_tokens=16)
    draft = without_detokenizer(FIXTURES / "llama" / "draft", tmp_path)
    engine = load_engine(
        settings.engine, pair_of(family("llama", "target"), draft, runtime=runtime), thoroughness=BRIEF
    )
    run = run_alone(engine.decoder(Request.of("Does it help", settings)))
    assert run.token_ids == run_alone(engine.decoder(Request.of("Does it help", settings).plain)).token_ids
    engine.close()
    with pytest.raises(PairError, match="choose a draft of the target's family"):
        load_engine(settings.engine, pair_of(inspect_folder(BUNDLED / "target"), draft, runtime=runtime))


def test_a_pair_that_is_too_large_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "memory_free", lambda: GB)
    report = check_pair(family("llama", "target"), None, cache_size=1)
    assert (report.fits, report.same_tokenizer, report.draft) == (
        True,
        None,
        None,
    )  # an upper estimate refuses nothing
    assert report.reason == (
        "It may need 2.1 GB of memory, but only 1.1 GB is free; choose a smaller cache size or a smaller pair."
    )
