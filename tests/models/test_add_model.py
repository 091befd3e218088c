"""Adding a model of one's own to the models directory."""

from pathlib import Path

import pytest

from specdemo.child import Limits
from specdemo.errors import FolderError, ModelError, SpecdemoError, UsageError
from specdemo.models.library import add_model
from tests.support import gguf_files


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


def test_a_file_is_read_within_limits(file: Path, directory: Path) -> None:
    none = Limits(seconds=-1.0)
    with pytest.raises(ModelError, match=r"'tiny.gguf' cannot be read: it took longer than"):
        add_model(str(file), directory, limits=none)
    assert not directory.exists()
