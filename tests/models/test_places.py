"""Folders of this machine that cannot be written."""

from pathlib import Path

import pytest

from specdemo.errors import SpecdemoError
from specdemo.models.devices import properties
from specdemo.models.places import writable
from specdemo.settings import RuntimeSettings


def test_an_unwritable_cache_of_compiled_models_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SpecdemoError, match="Compiled models cannot be saved in ") as refused:
        properties(RuntimeSettings(), "CPU")
    assert "file/specdemo/compiled" in str(refused.value)
    assert str(refused.value).endswith("a writable folder, or switch the compiled-model cache off.")
    assert "CACHE_DIR" not in properties(RuntimeSettings(model_cache=False), "CPU")


def test_a_writable_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    folder = writable(tmp_path / "a" / "b", "Rows")
    assert folder.is_dir()
    assert not list(folder.iterdir())
