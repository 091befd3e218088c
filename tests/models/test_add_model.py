"""Adding a model of one's own to the models directory."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from specdemo.child import Limits
from specdemo.errors import FolderError, ModelError, SpecdemoError, UsageError
from specdemo.models.gguf import LIMITS
from specdemo.models.library import add_model, library
from specdemo.models.pairs import BUNDLED, bundled_pair
from specdemo.ui.registry import Registry
from specdemo.ui.server import DROPPED, Drops
from specdemo.ui.session import Visitors
from tests.support import gguf_files


def drops(directory: Path, free_bytes: int = 0, limits: Limits = LIMITS) -> TestClient:
    """A page that takes files into this directory."""
    return TestClient(Starlette(routes=[Drops(directory, free_bytes, limits=limits).route]))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return gguf_files.write(tmp_path / "tiny.gguf", "llama", "Q8_0")


def test_a_file_is_linked_and_listed(file: Path, directory: Path) -> None:
    model = add_model(f' "{file}" ', directory)
    assert (model.name, model.path) == ("tiny.gguf", directory / "tiny.gguf")
    assert (directory / "tiny.gguf").samefile(file)
    assert add_model(str(file), directory) == model, "again is no mistake"


def test_a_folder_is_linked_and_listed(tmp_path: Path, directory: Path) -> None:
    folder = shutil.copytree(BUNDLED / "draft", tmp_path / "mine")
    assert add_model(str(folder), directory).name == "mine"
    assert "mine" in [model.name for model in library(directory).models]


def test_where_links_are_not_allowed_it_is_copied(
    file: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    for how in ("symlink", "link"):
        monkeypatch.setattr(f"os.{how}", refuse)
    add_model(str(file), directory)
    assert (directory / "tiny.gguf").read_bytes() == file.read_bytes()


def test_what_cannot_be_added_says_why(file: Path, tmp_path: Path, directory: Path) -> None:
    for place in ("", "  ", "tiny.gguf", str(tmp_path / "nothing.gguf")):
        with pytest.raises(UsageError, match="give its whole path on this machine"):
            add_model(place, directory)
    (tmp_path / "README.md").write_text("Hello")
    with pytest.raises(FolderError, match=r"'README.md' is not a model"):
        add_model(str(tmp_path / "README.md"), directory)
    add_model(str(file), directory)
    other = tmp_path / "other"
    other.mkdir()
    gguf_files.write(other / "tiny.gguf", "qwen2", "Q8_0")
    with pytest.raises(UsageError, match=r"has another 'tiny.gguf'; rename the file and add it again"):
        add_model(str(other / "tiny.gguf"), directory)
    (tmp_path / "file").touch()
    with pytest.raises(SpecdemoError, match="name another folder with --models-dir"):
        add_model(str(file), tmp_path / "file" / "models")


def test_the_page_gets_the_name_under_which_it_is_listed(file: Path, tmp_path: Path, directory: Path) -> None:
    registry = Registry(bundled_pair(), Visitors(), directory=directory)
    assert registry.add(str(file)) == "tiny.gguf"
    copy = shutil.copy(file, tmp_path / "a copy.gguf")
    assert registry.add(str(copy)) in registry.models()
    assert registry.folder == directory


def test_a_dropped_file_is_kept_if_it_is_a_model(file: Path, tmp_path: Path, directory: Path) -> None:
    page = drops(directory)
    for _ in range(2):  # again is no mistake
        kept = page.put("/model/mine.gguf", content=file.read_bytes()).json()
        assert kept == {"path": str(directory / "mine.gguf")}
    assert (directory / "mine.gguf").read_bytes() == file.read_bytes()
    assert add_model(str(directory / "mine.gguf"), directory).name == "mine.gguf"
    other = gguf_files.write(tmp_path / "other.gguf", "qwen2", "Q8_0").read_bytes()
    for name, content, reason in (
        ("mine.gguf", other, "has another 'mine.gguf'; rename the file"),
        ("bad.gguf", b"GGUF", "bad.gguf"),
        ("half.gguf", file.read_bytes()[:5000], "half.gguf"),
    ):
        assert reason in page.put(f"/model/{name}", content=content).json()["refused"]
    assert [path.name for path in directory.iterdir()] == ["mine.gguf"]


def test_no_file_is_taken_that_would_fill_the_disk(directory: Path) -> None:
    refused = drops(directory, 2**63).put("/model/a.gguf", content=b"GGUF")
    assert "There is no room for this file" in refused.json()["refused"]


def test_one_file_arrives_at_a_time(file: Path, directory: Path) -> None:
    page = drops(directory)
    others = []

    def slowly() -> Iterator[bytes]:
        others.append(page.put("/model/second.gguf", content=file.read_bytes()).json())
        yield file.read_bytes()

    size = {"content-length": str(file.stat().st_size)}
    assert "path" in page.put("/model/first.gguf", content=slowly(), headers=size).json()
    assert others == [{"refused": "Another file is being copied; drop this one when that is done."}]
    assert "path" in page.put("/model/second.gguf", content=file.read_bytes()).json()


def test_a_file_that_was_half_here_when_its_server_was_killed_is_deleted(directory: Path) -> None:
    for age, name in ((7200, "old"), (0, "arriving")):
        place = directory / f"{DROPPED}{name}"
        place.mkdir(parents=True)
        (place / "half.gguf").touch()
        os.utime(place / "half.gguf", (time.time() - age,) * 2)
    Drops(directory)
    assert [path.name for path in directory.iterdir()] == [f"{DROPPED}arriving"]


def test_a_file_is_read_within_limits(file: Path, directory: Path) -> None:
    none = Limits(seconds=-1.0)
    refused = drops(directory, limits=none).put("/model/mine.gguf", content=file.read_bytes()).json()["refused"]
    assert "'mine.gguf' cannot be read: it took longer than" in refused
    with pytest.raises(ModelError, match="longer than"):
        add_model(str(file), directory, limits=none)
    assert list(directory.iterdir()) == []
