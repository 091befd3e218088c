"""Untrusted files: reading one gives a model or a `GGUFError`, whatever it holds."""

import json
import os
from pathlib import Path

import pytest

from specdemo.errors import GGUFError, ModelError
from specdemo.models import gguf
from specdemo.models.convert import configuration, generation_config
from specdemo.models.gguf import inspect_gguf, inspect_model
from specdemo.models.gguf_header import read_header
from specdemo.models.library import library
from tests.support import mutants


def test_any_file_is_read_or_refused(tmp_path: Path) -> None:
    for place, content in enumerate(mutants.mutants(600)):
        file = tmp_path / f"{place}.gguf"
        file.write_bytes(content)
        try:
            model = inspect_gguf(file)
            header = read_header(file)
            json.dumps(
                [configuration(header), generation_config(header), json.loads(model.model_dump_json())],
                allow_nan=False,
            )
        except GGUFError as error:
            if len(str(error)) >= 1000 or not str(error).endswith("."):
                pytest.fail(str(error))


def test_a_refusal_is_cached_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mutant.gguf"
    file.write_bytes(mutants.SEEDS["no tensors"])
    with pytest.raises(GGUFError) as first:
        inspect_gguf(file)
    with monkeypatch.context() as patch:
        patch.setattr(gguf, "read_header", None)
        with pytest.raises(GGUFError) as second:
            inspect_gguf(file)
    assert str(first.value) == str(second.value)
    file.write_bytes(mutants.header())
    assert inspect_gguf(file).vocabulary == 4


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(GGUFError, match="not a readable GGUF file"):
        read_header(tmp_path / "pipe.gguf")


def test_no_file_stops_a_listing(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    for place, content in enumerate(mutants.SEEDS.values()):
        (models / f"{place}.gguf").write_bytes(content)
    (models / "good.gguf").write_bytes(mutants.header())
    (models / os.fsdecode(b"\xff.gguf")).write_bytes(mutants.header())
    (models / "dangling.gguf").symlink_to(tmp_path / "nothing")
    found = library(models)
    assert "good.gguf" in [model.name for model in found.models]
    assert len(found.unusable) == len(mutants.SEEDS) + 2
    assert json.loads(found.model_dump_json())


def test_a_bug_in_the_reader_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good.gguf").write_bytes(mutants.header())

    def fails(path: Path) -> None:
        raise TypeError(path)

    monkeypatch.setattr(gguf, "inspect_gguf", fails)
    with pytest.raises(ModelError, match=r"'good.gguf' cannot be read \(TypeError\); choose another model"):
        inspect_model(tmp_path / "good.gguf")
