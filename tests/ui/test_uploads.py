"""Visitors' files are parsed within limits, in separate processes that end when nobody waits."""

import gzip
import json
from base64 import b64encode
from collections.abc import Generator
from pathlib import Path
from time import monotonic
from typing import Any
from unittest import mock

import psutil
import pytest

from specdemo.child import Limits, result_of
from specdemo.engines.scripted import ScriptedEngine
from specdemo.errors import FileError
from specdemo.exports import schema
from specdemo.exports.html import FILE_KINDS
from specdemo.race import race
from specdemo.records import Comparison
from specdemo.settings import GenerationSettings
from specdemo.ui import uploads
from specdemo.ui.compare import CompareCallbacks
from specdemo.ui.uploads import meanwhile, open_apart, share_apart, tasks_apart


@pytest.fixture(scope="module")
def saved() -> dict[str, Any]:
    """A comparison as Share saves it."""
    *_, comparison = race(ScriptedEngine(wrong=(4, 7)), "Say", GenerationSettings(num_assistant_tokens=3))
    assert isinstance(comparison, Comparison)
    return schema.to_json(comparison)


def packed(comparison: dict[str, Any]) -> str:
    return b64encode(gzip.compress(json.dumps(comparison).encode())).decode()


def test_a_file_is_opened_and_a_run_drawn_in_a_process_of_its_own(saved: dict[str, Any]) -> None:
    data = json.dumps(saved).encode()
    assert '"kind": "end"' in str(result_of(open_apart(data)).feed)
    assert result_of(share_apart("gif", packed(saved))).startswith(b"GIF8")
    with pytest.raises(FileError, match="not a comparison"):
        result_of(open_apart(b"{}"))


def test_a_picture_that_takes_too_long_is_refused(saved: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "LIMITS", Limits(seconds=3))
    long, began = packed(saved | {"prompt": "\n" * 2**22}), monotonic()
    assert len(long) < 50_000
    with pytest.raises(FileError, match="cannot be drawn: it took longer than 3 s; share it as JSON"):
        result_of(share_apart("gif", long))
    assert monotonic() - began < 20


def test_whoever_leaves_ends_the_process_that_reads_for_them(saved: dict[str, Any]) -> None:
    before = set(psutil.Process().children())
    work = meanwhile(share_apart("gif", packed(saved | {"prompt": "\n" * 2**22})), ["still"])
    assert [next(work), next(work)] == [["still"], ["still"]]
    [process] = [
        one for one in psutil.Process().children() if one not in before and "spawn_main" in str(one.cmdline())
    ]
    work.close()
    psutil.wait_procs([process], timeout=10)
    assert not process.is_running()


def test_the_page_shows_why_a_file_is_refused() -> None:
    *_, (_, message) = CompareCallbacks(mock.Mock()).open(b"[1]")
    assert "not a comparison" in message


def test_prompts_of_a_file_are_read_apart(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "Once"}\n{"prompt": "Twice"}\n')
    assert [task.prompt for task in result_of(tasks_apart(str(file), "base", 5))] == ["Once", "Twice"]
    assert len(result_of(tasks_apart(None, "base", 3))) == 3
    file.write_text("{")
    with pytest.raises(FileError, match="is not JSON"):
        result_of(tasks_apart(str(file), "base", 5))


def test_kinds_of_files_are_those_that_the_page_offers() -> None:
    assert set(FILE_KINDS) == {"html", "gif"}


def test_an_update_is_whole_however_often_it_is_shown() -> None:
    def work() -> Generator[None, None, str]:
        yield
        yield
        return "done"

    shown, waiting = meanwhile(work(), [{"value": "Wait"}]), "Wait"
    for _ in range(2):
        assert next(shown)[0].pop("value") == waiting  # as Gradio does when it sends an update
    with pytest.raises(StopIteration, match="done"):
        next(shown)
