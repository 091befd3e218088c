"""The catalogue, the models on this machine, adding a model, and read-only folders."""

import hashlib
import shutil
from pathlib import Path

import pytest

from specdemo.child import Limits
from specdemo.errors import GGUFError, ModelError, SpecdemoError, UnknownNameError, UsageError
from specdemo.files import writable_folder
from specdemo.models.catalogue import catalogue, entry_folders, find
from specdemo.models.converted import file_digest
from specdemo.models.library import Library, add_model, draft_for, find_model, library, resolve
from tests.support import gguf_files
from tests.support.folders import FIXTURES

BUNDLED_NAMES = ["story-pair/target", "story-pair/draft", "smollm2-head", "smollm2-draft"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Holds a model, one in an organisation's folder, an incomplete one and an unfinished conversion."""
    directory = tmp_path / "models"
    shutil.copytree(FIXTURES / "gpt2" / "target", directory / "mine")
    for place in ("org/small", "half", ".converting-x/exported"):
        shutil.copytree(FIXTURES / "qwen3" / "draft", directory / place)
    (directory / "half" / "openvino_model.bin").unlink()
    (directory / "notes.txt").touch()
    return directory


def cached(repository: str, source: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "hub" / f"models--{repository.replace('/', '--')}" / "snapshots" / "abc"
    return Path(shutil.copytree(source, folder))


def test_the_catalogue_says_why_a_pair_is_not_supported() -> None:
    entries = catalogue()
    assert [entry.name for entry in entries[:3]] == ["smollm2-eagle3", "story-pair", "smollm2"]
    assert len({entry.name for entry in entries}) == len(entries) == 15
    assert [entry.name for entry in entries if entry.kind == "eagle3"] == ["smollm2-eagle3", "qwen3-8b-eagle3"]
    for entry in entries:
        assert entry.memory_bytes > entry.disk_bytes
    assert "encoder and a decoder" in (find("flan-t5-xl").reason or "")


def test_the_library_has_everything_once(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [model.name for model in library().models] == BUNDLED_NAMES
    cached("org/small", FIXTURES / "qwen3" / "target", tmp_path)
    half = cached("org/half", FIXTURES / "qwen3" / "target", tmp_path)
    (half / "openvino_model.bin").write_bytes(b"")
    monkeypatch.setenv("SPECDEMO_MODELS", str(directory))
    names = [model.name for model in library().models]
    assert names == [*BUNDLED_NAMES, "org/small", "mine", "org/small (2)"]
    assert find_model("org/small (2)").path == directory / "org" / "small"
    assert library() == library(directory)
    written = library(directory).model_dump_json()  # no path leaves this machine
    assert str(directory) not in written
    assert Library.model_validate_json(written).models[0].path is None


@pytest.mark.parametrize("name", ["nothing", "../models/mine", "/etc", "", ".", "org/../mine"])
def test_a_name_is_never_a_path(name: str, directory: Path) -> None:
    with pytest.raises(UnknownNameError, match="Unknown model"):
        find_model(name, directory)


def test_an_unknown_name_gets_a_suggestion() -> None:
    for name, meant in (("qwn3", "qwen3-8b"), ("story-pair/targt", "story-pair/target")):
        with pytest.raises(UnknownNameError, match=rf"^Unknown model '{name}'; choose {meant}"):
            resolve(name)
    with pytest.raises(
        UnknownNameError, match=r"'qwen3-8b' is a pair .* whose target is 'OpenVINO/Qwen3-8B-int4-ov'"
    ):
        resolve("qwen3-8b")
    assert resolve("story-pair").name == "story-pair/target", "a pair that is here names its target"


def test_a_gguf_file_is_a_model_wherever_one_is_named(file: Path, directory: Path) -> None:
    assert resolve(str(file)) == resolve(str(file.parent)), "the only file in its folder"
    (directory / "org" / "repository").mkdir(parents=True)
    shutil.copy(file, directory / "mine.gguf")
    shutil.copy(file, directory / "org" / "repository" / "tiny.gguf")
    (directory / "bad.gguf").write_bytes(b"GGUF")
    (directory / "mmproj-tiny.gguf").write_bytes(b"GGUF")
    found = library(directory)
    assert {"mine.gguf", "org/repository/tiny.gguf"} < {model.name for model in found.models}
    assert [unusable.name for unusable in found.unusable] == ["half", "bad.gguf"]
    assert found.unusable[0].reason == "The folder 'half' lacks openvino_model.bin; copy the whole folder again."
    assert resolve("mine.gguf", directory).path == directory / "mine.gguf"
    with pytest.raises(UnknownNameError, match=r"'bad.gguf' cannot be used: 'bad.gguf' is incomplete"):
        resolve("bad.gguf", directory)


def test_a_folder_of_files_is_its_largest_with_a_draft_beside_it(tmp_path: Path) -> None:
    folder, directory = tmp_path / "both", tmp_path / "models"
    folder.mkdir()
    small = gguf_files.write(folder / "0.5b.gguf", "qwen2", "Q4_0")
    gguf_files.write(folder / "1.5b.gguf", "qwen2", "F16")
    target = resolve(folder)
    assert target.name == "1.5b.gguf"
    assert draft_for(target) == resolve(small), "before either is converted"
    assert draft_for(resolve(small)) is None
    added = add_model(str(folder), directory)
    assert added.name == "both/1.5b.gguf"
    draft = draft_for(added, directory)
    assert draft is not None
    assert draft.name == "both/0.5b.gguf"
    gguf_files.write(small, "qwen2", "Q4_0", merges=[f"{one} {two}" for one in "abcdef" for two in "xyz"])
    assert draft_for(resolve(folder)) is None, "it has another tokenizer"


def test_a_catalogue_pair_is_ready_once_both_models_are_here(tmp_path: Path) -> None:
    entry, converted = find("dolly-v2-7b"), find("opt-6.7b")
    assert entry_folders(entry) == (None, None)
    cached("OpenVINO/dolly-v2-7b-int8-ov", FIXTURES / "llama" / "target", tmp_path)
    assert entry_folders(entry)[1] is None
    cached("OpenVINO/dolly-v2-3b-int4-ov", FIXTURES / "llama" / "draft", tmp_path)
    here = {model.path: model.name for model in library().models}
    assert [here[folder] for folder in entry_folders(entry)] == [source.repository for source in entry.sources]
    for name in ("opt-6.7b-int8-ov", "opt-125m-int8-ov"):
        shutil.copytree(FIXTURES / "qwen3" / "draft", tmp_path / "cache" / "specdemo" / "models" / name)
    assert None not in entry_folders(converted)


def test_a_model_is_linked_or_copied_and_listed(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linked, copied = tmp_path / "linked", tmp_path / "copied"
    model = add_model(f' "{file}" ', linked)
    assert (model.name, model.path) == ("tiny.gguf", linked / "tiny.gguf")
    assert (linked / "tiny.gguf").samefile(file)
    assert add_model(str(file), linked) == model, "again is no mistake"

    def refuse(*_: object) -> None:
        raise OSError

    for how in ("symlink", "link"):
        monkeypatch.setattr(f"os.{how}", refuse)
    add_model(str(file), copied)
    assert not (copied / "tiny.gguf").samefile(file)


def test_models_that_cannot_be_added_are_refused_with_the_reason(file: Path, tmp_path: Path) -> None:
    directory = tmp_path / "models"
    for place in ("", "  ", "tiny.gguf", str(tmp_path / "nothing.gguf"), "~nobody/a", "/a\0b", f"/{'a' * 300}"):
        with pytest.raises(UsageError, match="give its full path on this machine"):
            add_model(place, directory)
    (tmp_path / "README.md").write_text("Hello")
    with pytest.raises(GGUFError, match=r"'README.md' is not a GGUF file; give one"):
        add_model(str(tmp_path / "README.md"), directory)
    with pytest.raises(ModelError, match=r"'tiny.gguf' cannot be read: it took longer than"):
        add_model(str(file), directory, limits=Limits(seconds=-1.0))
    assert not directory.exists()
    add_model(str(file), directory)
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(file, other)
    with pytest.raises(UsageError, match=r"already has another 'tiny.gguf'; rename the file and add it again"):
        add_model(str(other / "tiny.gguf"), directory)
    with pytest.raises(SpecdemoError, match="name another folder with --models-dir"):
        add_model(str(file), file / "models")


def test_models_are_listed_without_a_writable_cache(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(file))
        assert file_digest(file) == digest
        assert library().models
        with pytest.raises(SpecdemoError, match=r"Rows cannot be saved in .* set XDG_CACHE_HOME"):
            writable_folder(file / "rows", "Rows")
    assert file_digest(file) == digest
    monkeypatch.setattr("hashlib.file_digest", None)
    assert file_digest(file) == digest, "kept in the cache"
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(TypeError):
        file_digest(file)
