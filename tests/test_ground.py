"""The ground: errors with their cause's own words, settings, foreign text, and written files."""

import json
import logging
import os
import pickle
import resource
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdemo.errors import FileError, LoadError, SettingsError, SpecdemoError
from specdemo.files import SCHEMA, write_bytes, write_json
from specdemo.settings import GenerationSettings
from specdemo.text import printable, without_folders
from tests.support.failing import limited


def failed(error: BaseException) -> SpecdemoError:
    return LoadError.of(error, "OpenVINO cannot load 'draft'", "export it again")


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (RuntimeError("Unsupported operation: Foo"), "OpenVINO cannot load 'draft'; export it again."),
        (MemoryError("std::bad_alloc"), "'draft': there is not enough memory; free some"),
        (RuntimeError("Check 'p' failed: Couldn't allocate 12 bytes"), "there is not enough memory"),
        (RuntimeError("Resource temporarily unavailable"), "refuses another thread, or more memory"),
        (OSError(24, "Too many open files"), "no more files; raise the limit, as with ulimit -n 1024"),
        (OSError(28, "No space left on device"), "the disk is full; free some space"),
    ],
)
def test_the_advice_follows_from_the_cause(error: BaseException, advice: str) -> None:
    assert advice in str(failed(error))


def test_cause_and_traceback_survive_pickling(caplog: pytest.LogCaptureFixture) -> None:
    try:
        try:
            raise OSError(2, os.strerror(2), "model.bin")
        except OSError as error:
            raise RuntimeError("Exception from core.cpp:99") from error
    except RuntimeError as error:
        ours = failed(error)
        ours.__cause__ = error
    arrived = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(ours))))
    assert str(arrived) == str(ours)
    assert type(arrived) is LoadError
    assert arrived.cause == ours.cause
    assert "RuntimeError: Exception from core.cpp:99\nFileNotFoundError: [Errno 2]" in arrived.cause
    with caplog.at_level(logging.INFO, "specdemo"):
        arrived.log()
        arrived.log()
        FileError("'x' is no file; choose another.").log()  # only the request was wrong
    (logged,) = caplog.records
    assert "Traceback" in logged.message
    assert "model.bin" in logged.message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"num_assistant_tokens": 0},
            r"Lookahead \(num_assistant_tokens\) should be greater than or equal to 1, got 0",
        ),
        ({"assistant_confidence_threshold": 1.5}, r"Confidence threshold .* less than or equal to 1, got 1.5"),
        ({"drafter": "lookup", "policy": "confidence"}, "Drafter lookup needs policy constant"),
        ({"lookahead": 3}, "There is no setting called 'lookahead'; choose from engine, drafter"),
        ({"num_assistant_tokens": "many"}, "should be a valid integer"),
        ({"temperature": float("nan")}, "Temperature"),
    ],
)
def test_a_wrong_value_is_one_sentence(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as error:
        GenerationSettings.checked(**values)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("\x1b[31mred\x1b]8;;http://x\x07", r"\x1b[31mred\x1b]8;;http://x\x07"),
        ("exe\u202etxt", r"exe\u202etxt"),
        ("Größe 日本 👩‍👩‍👧", "Größe 日本 👩‍👩‍👧"),
    ],
)
def test_control_characters_in_names_are_escaped(name: str, shown: str) -> None:
    assert printable(name) == shown


@given(st.text())
def test_only_line_breaks_and_tabs_stay_unescaped(text: str) -> None:
    shown = printable(text, lines=True)
    assert all(each.isprintable() or each in "\n\t" or ord(each) > 0x9F for each in shown)
    assert printable(shown, lines=True) == shown
    assert not set(printable(text)) & set("\n\r\t\x1b\x9b\u202e\u2028")


def test_visitors_see_no_folders() -> None:
    said = "Cannot open '/home/me/models/x.bin' (C:\\Users\\me\\y.bin), see https://docs.example/a/b and a/b"
    assert without_folders(said) == "Cannot open 'x.bin' (y.bin), see https://docs.example/a/b and a/b"


VALUE = {"τ": 1.5, "text": "“Where?”", "rows": [1, 2]}


def test_a_file_and_standard_output_have_the_same_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    write_json(VALUE, str(path))
    write_json(VALUE, "-")
    text, printed = path.read_text(encoding="utf-8"), capsys.readouterr().out
    assert json.loads(text) == json.loads(printed) == {"schema": SCHEMA, **VALUE}
    assert "“Where?”" in text
    assert printed.isascii()
    assert text.endswith("}\n")


def test_a_file_is_replaced_only_by_a_complete_one(tmp_path: Path) -> None:
    path, link = tmp_path / "o.json", tmp_path / "link"
    path.write_text("before")
    path.chmod(0o600)
    link.symlink_to(path)
    with limited(resource.RLIMIT_FSIZE, 1000), pytest.raises(SpecdemoError, match=r"File too large"):
        write_bytes(b"x" * 5000, link)
    assert path.read_text() == "before"
    assert {each.name for each in tmp_path.iterdir()} == {"o.json", "link"}
    write_bytes(b"after", link)
    assert (link.is_symlink(), path.read_text(), path.stat().st_mode & 0o777) == (True, "after", 0o600)
    write_bytes(b"nowhere", Path("/dev/null"))
