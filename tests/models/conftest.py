from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from specdemo.models.catalogue import catalogue
from tests.support import gguf_files


@pytest.fixture(autouse=True)
def nothing_of_the_users(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each test with an empty home and cache and without a network, except those of an installed model."""
    if request.path.stem == "test_smollm2":
        return
    for name in ("SPECDEMO_MODELS", "LLAMA_CACHE", "OLLAMA_MODELS", "HF_HOME", "HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    hidden = {
        source.package.partition("==")[0] for entry in catalogue() for source in entry.sources if source.package
    }

    def files(name: str) -> Any:
        if name in hidden:
            raise metadata.PackageNotFoundError(name)
        return metadata.files(name)

    monkeypatch.setattr("specdemo.models.catalogue.files", files)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return gguf_files.write(tmp_path / "tiny.gguf", "llama", "Q8_0")
