"""What is written: the same JSON for files and for standard output."""

import json
from pathlib import Path

import pytest

from specdemo.errors import SpecdemoError
from specdemo.files import SCHEMA, write_json, write_text

VALUE = {"τ": 1.5, "text": "“Where?”", "rows": [1, 2]}


def test_a_file_and_standard_output_hold_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    write_json(VALUE, str(path))
    write_json(VALUE, "-")
    text, printed = path.read_text(encoding="utf-8"), capsys.readouterr().out
    assert json.loads(text) == json.loads(printed) == {"schema": SCHEMA, **VALUE}
    assert "“Where?”" in text
    assert printed.isascii()
    assert text.endswith("}\n")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecdemoError, match=r"nowhere.*choose another path"):
        write_text("text", tmp_path / "nowhere" / "out.txt")
