"""Output of the program: JSON of one schema version, and the files that JSON and text are written to."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdemo.errors import SpecdemoError, quoted

SCHEMA = 2
"""Version of all JSON objects that other programs read. Since 2, a comparison holds its repeats."""
READABLE = (1, SCHEMA)
"""Versions of comparisons that are read."""


def json_text(value: Any, indent: int | None = None) -> str:
    """A value as JSON, without escaping non-ASCII letters."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def write_json(content: Mapping[str, Any], path: str | Path, indent: int | None = 2) -> None:
    """Write an object as JSON, with the schema version, to a file, or to standard output for `-`.

    Raises:
        SpecdemoError: it cannot be written.
    """
    value = {"schema": SCHEMA, **content}
    if path == "-":
        print(json.dumps(value, indent=indent))  # any terminal takes ASCII
    else:
        write_text(json_text(value, indent) + "\n", Path(path))


def write_text(text: str, path: Path) -> None:
    """Write a file.

    Raises:
        SpecdemoError: it cannot be written.
    """
    write_bytes(text.encode(), path)


def write_bytes(content: bytes, path: Path) -> None:
    """Write a file.

    Raises:
        SpecdemoError: it cannot be written.
    """
    try:
        path.write_bytes(content)
    except OSError as error:
        raise SpecdemoError(f"Cannot write {quoted(str(path))} ({error.strerror}); choose another path.") from error
