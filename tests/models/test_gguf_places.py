import hashlib
import json
import shutil
from pathlib import Path

import pytest

from specdemo.files import ASSETS
from specdemo.models import catalogue, checks, library
from specdemo.models.catalogue import (
    BUNDLED,
    Source,
    bundled_models,
    default_pair,
    default_runtime,
    defaults_of,
    find,
    local_folder,
)
from specdemo.models.folder import inspect_folder
from specdemo.models.gguf import inspect_model
from specdemo.models.library import draft_for, find_model, other_programs_files, source_of


def put(file: Path, place: Path) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(file, place))


def test_lm_studio(file: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert list(other_programs_files()) == []
    usual = put(file, home / ".lmstudio" / "models" / "publisher" / "repository" / "a.gguf")
    assert list(other_programs_files()) == [("publisher/repository:a.gguf", usual)]


def test_llama_cpp_and_each_file_once(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache" / "llama.cpp"
    usual = put(file, folder / "org_name_tiny.gguf")
    put(file, folder / "org_name_mmproj-tiny.gguf")
    (folder / "dangling.gguf").symlink_to(tmp_path / "nothing")
    assert list(other_programs_files()) == [("org_name_tiny.gguf", usual)]
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
    flat = put(file, tmp_path / "llama" / "flat.gguf")
    deep = put(file, tmp_path / "llama" / "models--org--name" / "snapshots" / "abc" / "deep.gguf")
    (tmp_path / "llama" / "linked.gguf").symlink_to(flat)
    assert list(other_programs_files()) == [("org/name:deep.gguf", deep), ("flat.gguf", flat)]


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("registry.ollama.ai/library/tiny/1b", "tiny:1b"),
        ("registry.ollama.ai/someone/tiny/latest", "someone/tiny:latest"),
        ("hf.co/org/tiny-GGUF/Q8_0", "hf.co/org/tiny-GGUF:Q8_0"),
    ],
)
def test_ollama(place: str, name: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = tmp_path / "ollama"
    monkeypatch.setenv("OLLAMA_MODELS", str(models))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    blob = put(file, models / "blobs" / f"sha256-{digest}")
    manifest = models / "manifests" / place
    manifest.parent.mkdir(parents=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": f"sha256:{'0' * 64}"},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"},
    ]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    assert list(other_programs_files()) == [(name, blob)]
    assert find_model(name).path == blob
    layers[1]["digest"] = f"../{file.name}"  # a file elsewhere
    put(file, models / file.name)
    manifest.write_text(json.dumps({"layers": layers}))
    assert list(other_programs_files()) == []


@pytest.fixture
def source(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    site = tmp_path / "site"
    about = site / "tiny_model-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
    (about / "RECORD").write_text("tiny_model/tiny.gguf,,\n")
    put(file, site / "tiny_model" / "tiny.gguf")
    monkeypatch.syspath_prepend(str(site))
    return find("smollm2").target.model_copy(
        update={
            "repository": "tiny/story-GGUF",
            "disk_bytes": file.stat().st_size,
            "name": "Tiny",
            "file": "tiny.gguf",
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            "package": "tiny-model==1.0",
        }
    )


def test_an_installed_package_is_found_without_its_dependencies(source: Source, tmp_path: Path) -> None:
    assert local_folder(source) == tmp_path / "site" / "tiny_model" / "tiny.gguf"
    assert local_folder(source.model_copy(update={"sha256": "0" * 64})) is None, "another file does not count"


def test_a_pair_of_the_catalogue_begins_with_its_settings_once_it_is_here(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDEMO_PAIR", "smollm2")
    assert default_pair().name == "story-pair"
    defaults = find("smollm2-eagle3").defaults
    entries = find("smollm2").model_copy(update={"target": source, "defaults": defaults}), find("story-pair")
    for module in (catalogue, checks, library):
        monkeypatch.setattr(module, "catalogue", lambda: entries)
    renamed = put(local_folder(source) or Path(), tmp_path / "elsewhere" / "renamed.gguf")
    assert draft_for(inspect_model(renamed)) == inspect_folder(ASSETS / "smollm2-draft")
    assert source_of(inspect_model(renamed)) == source
    assert defaults_of(inspect_model(renamed)) == defaults
    renamed.write_bytes(renamed.read_bytes()[:-1] + b"x")
    assert draft_for(inspect_model(renamed)) is None, "another file of the same size"
    pair = default_pair()
    assert pair.name == "Tiny + smollm2-draft"
    assert (pair.runtime.precision, pair.runtime.dynamic_quantization) == ("f32", "auto")
    assert default_runtime(pair.target) == pair.runtime
    assert defaults_of(pair.target).generation["repetition_penalty"] == 1.1
    assert defaults_of(bundled_models()[0]).generation == {}, "another pair's settings"
    monkeypatch.setenv("SPECDEMO_PAIR", "story-pair")
    assert default_pair().target.path == BUNDLED / "target"
