"""Commands to copy: as POSIX shells take them and, where that is written differently, as PowerShell does."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from shlex import join
from typing import Any

_PLAIN = re.compile(r"[\w./:=+\\-]+")


def command(arguments: Sequence[str]) -> Iterator[str]:
    """The line that runs a program, and as a comment PowerShell's (7.3 or newer), if it is another."""
    line, other = join(arguments), powershell(arguments)
    yield line
    if other != line:
        yield f"# in PowerShell: {other}"


def post(url: str, body: Mapping[str, Any]) -> Iterator[str]:
    """The line that sends a JSON object to a server, and as a comment PowerShell's."""
    data = json.dumps(body, ensure_ascii=False)
    yield join(["curl", url, "-H", "Content-Type: application/json", "-d", data])
    flags = ["-Method", "Post", "-Uri", url, "-ContentType", "application/json; charset=utf-8", "-Body", data]
    yield f"# in PowerShell: {powershell(['Invoke-RestMethod', *flags])}"


def powershell(arguments: Sequence[str]) -> str:
    """The line in PowerShell, where a quote within quotes is doubled."""
    return " ".join(each if _PLAIN.fullmatch(each) else "'" + each.replace("'", "''") + "'" for each in arguments)
