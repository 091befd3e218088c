"""Copied commands mean the same to POSIX shells and to PowerShell."""

import json
import shlex

from hypothesis import given
from hypothesis import strategies as st

from specdemo.presentation.code import command, post, powershell


def test_a_line_that_every_shell_reads_alike_is_written_once() -> None:
    assert list(command(["llama-server", "--port", "8080", "-m", "models/a.gguf"])) == [
        "llama-server --port 8080 -m models/a.gguf"
    ]


def test_quotes_are_doubled_in_powershell() -> None:
    first, second = command(["ovms", "--model_name", "the king's draft"])
    assert shlex.split(first) == ["ovms", "--model_name", "the king's draft"]
    assert second == "# in PowerShell: ovms --model_name 'the king''s draft'"


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r")), min_size=1))
def test_what_is_quoted_stays_one_argument(arguments: list[str]) -> None:
    line = powershell(arguments)
    assert line.count("'") % 2 == 0
    for each in arguments:
        assert each.replace("'", "''") in line


def test_a_request_is_sent_as_it_is() -> None:
    body = {"prompt": 'Say "it\'s"', "max_tokens": 8}
    first, second = post("http://localhost:8000/v1/completions", body)
    assert json.loads(shlex.split(first)[-1]) == body
    quoted = second.partition("-Body ")[2]
    assert json.loads(quoted[1:-1].replace("''", "'")) == body
