"""Files: what ships with specdemo, what others wrote, and what specdemo writes.

What others wrote is read up to a size limit and parsed without surprises: Python's own JSON parser recurses, so deep
nesting ends in a RecursionError; it also accepts NaN as a number, and lone surrogates, which nothing can write again.
Pydantic's parser does none of that.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from specdemo.errors import FileError, SpecdemoError, quoted


def json_value(text: str | bytes) -> Any:
    """The value that a JSON text holds. A number too large for a float becomes infinite; records reject it.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or holds invalid text.
    """
    return from_json(text, allow_inf_nan=False)


def read_bytes(path: Path, most: int, kind: str) -> bytes:
    """The content of a file of at most `most` bytes; `kind` says what it should be.

    Messages omit its folder, which may be the server's.

    Raises:
        FileError: it cannot be read, or is longer.
    """
    name = quoted(path.name or str(path))
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:  # ValueError: not a possible file name
        raise FileError(f"Cannot read {name}; choose {kind}.") from error
    if len(data) > most:
        raise FileError(f"{name} is larger than {most // 2**20} MB; choose a smaller file.")
    return data


def is_text(value: Any) -> bool:
    """Whether a text can be encoded: lone surrogates, which JSON can hold, cannot."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


SCHEMA = 2
"""Version of all JSON objects that other programs read."""


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


_PACKAGE = Path(__file__).resolve().parent

# A wheel holds `assets/` inside the package; in a checkout it stands beside the package.
ASSETS = next(folder for folder in (_PACKAGE / "assets", _PACKAGE.parent / "assets") if folder.is_dir())

_LIGHT, _DARK = r":root \{(.*?)\}", r"\.dark \{(.*?)\}"


@cache
def colours(*, dark: bool = False) -> dict[str, str]:
    """The page's colours by name, such as `ink`, from its style sheet, for what is drawn outside the page."""
    sheet = (ASSETS / "page" / "tokens.css").read_text(encoding="utf-8")
    found = re.search(_DARK if dark else _LIGHT, sheet, re.DOTALL)
    assert found is not None, "the style sheet begins with its colours"
    return dict(re.findall(r"--sd-([\w-]+): (#\w+)", found[1]))
