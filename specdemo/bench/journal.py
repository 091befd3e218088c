"""An append-only file of JSON lines: what is measured, then one finished row per line.

Each line is flushed at once. A crash can truncate only the last line, which is dropped when the file is reopened.
"""

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Self, TypeVar

from pydantic import ValidationError

from specdemo.errors import FileError, SpecdemoError, quoted
from specdemo.records import Record

R = TypeVar("R", bound=Record)


class Heading(Record):
    """What is measured. Subclasses know how it can differ from what was begun in the same file."""

    @abstractmethod
    def differences(self, begun: Self) -> list[str]:
        """How that one differs, in words."""


class Journal:
    """The rows of one measurement, in a file."""

    def __init__(self, path: Path) -> None:
        """A journal at this path, which need not exist."""
        self.path = path

    def open(self, header: Heading, row: type[R]) -> list[R]:
        """The rows already in the file, which is created if there is none.

        Raises:
            FileError: the file holds rows of something else, or cannot be read.
            SpecdemoError: it cannot be written.
        """
        lines = self._lines()
        if not lines:
            self._write(f"{header.model_dump_json()}\n", "w")
            return []
        differences = self._differences(lines[0], header)
        if differences:
            raise FileError(
                f"{quoted(str(self.path))} holds rows of a run with {', '.join(differences)}; "
                "choose another output path, or delete that file."
            )
        return list(self._rows(lines[1:], row))

    def append(self, row: Record) -> None:
        """Add a finished row.

        Raises:
            SpecdemoError: it cannot be written.
        """
        self._write(f"{row.model_dump_json()}\n", "a")

    def delete(self) -> None:
        """Remove the file, once its rows are safe elsewhere."""
        self.path.unlink(missing_ok=True)

    def _lines(self) -> list[str]:
        """Complete lines; a truncated one is removed from the file too, so that appending starts a new line."""
        if not self.path.exists():
            return []
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise FileError(
                f"Cannot read {quoted(str(self.path))} ({error.strerror}); choose another path."
            ) from error
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self._write(whole, "w")
        return whole.split("\n")[:-1]  # not `splitlines`: text in JSON may hold other line separators

    def _differences(self, line: str, header: Heading) -> list[str]:
        try:
            return header.differences(type(header).model_validate_json(line))
        except ValidationError:
            return ["a header from another version"]

    def _rows(self, lines: list[str], row: type[R]) -> Iterator[R]:
        for number, line in enumerate(lines, 2):
            try:
                yield row.model_validate_json(line)
            except ValidationError as error:
                message = f"Line {number} of {quoted(str(self.path))} is damaged; delete that line or the file."
                raise FileError(message) from error

    def _write(self, text: str, mode: str) -> None:
        try:
            with self.path.open(mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise SpecdemoError(
                f"Cannot write {quoted(str(self.path))} ({error.strerror}); choose another path."
            ) from error
