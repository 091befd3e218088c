"""Reading files that others wrote: up to a size limit, and parsed without surprises.

Python's own JSON parser recurses, so deep nesting ends in a RecursionError; it also accepts NaN as a number, and lone
surrogates, which nothing can write again. Pydantic's parser does none of that.
"""

from pathlib import Path
from typing import Any

from pydantic_core import from_json

from specdemo.errors import FileError, quoted


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
