"""What comes into the program from files that others wrote: read up to a limit, and parsed without surprises.

Python's own parser of JSON recurses, so that deep nesting ends in a RecursionError; it takes NaN for a number, and a
lone surrogate for a letter that nothing can write again. Pydantic's does none of that.
"""

from pathlib import Path
from typing import Any

from pydantic_core import from_json

from specdemo.errors import FileError, quoted


def json_value(text: str | bytes) -> Any:
    """The value that a JSON text holds. A number too large for a float is infinite; records refuse it.

    Raises:
        ValueError: it is not JSON, is nested deeper than any file of ours, or holds what is not text.
    """
    return from_json(text, allow_inf_nan=False)


def read_bytes(path: Path, most: int, kind: str) -> bytes:
    """A file of at most so many bytes; `kind` says what it should be. Its folder is not told: it may be the server's.

    Raises:
        FileError: it cannot be read, or is longer.
    """
    name = quoted(path.name or str(path))
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:  # ValueError: no system takes such a name
        raise FileError(f"Cannot read {name}; choose {kind}.") from error
    if len(data) > most:
        raise FileError(f"{name} is larger than {most // 2**20} MB; choose {kind} that is not.")
    return data
