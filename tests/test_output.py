"""Written files: the same JSON as on standard output, replaced only by complete ones."""

import json
import resource
from pathlib import Path

import pytest

from specdemo.errors import SpecdemoError
from specdemo.files import SCHEMA, write_bytes, write_json
from tests.support.failing import limited

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
