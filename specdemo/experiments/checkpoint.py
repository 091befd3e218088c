"""A checkpoint: an append-only file of JSON lines, with what is measured first, then one finished row per line.

Each line is flushed at once. A crash can truncate only the last line, which is dropped when the file is reopened.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar

from pydantic import ValidationError

from specdemo.errors import FileError, SpecdemoError, quoted
from specdemo.experiments.suites import Task
from specdemo.models.converted import folder_of
from specdemo.models.folder import files_digest
from specdemo.records import Costs, Environment, ModelPair, Record, Servers
from specdemo.settings import GenerationSettings

_DIGITS = 4  # so many addresses share them that guessing does not find the one that is meant


class Row(Record):
    """One finished part of an experiment; rows with the same key measure the same part."""

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """Which part of the plan this row measures."""

    @property
    def doing(self) -> str:
        """What was measured, as progress shows it."""
        return "measuring"


R = TypeVar("R", bound=Row)


class EngineFacts(Record):
    """What holds for all rows of an engine. `costs` are its step costs, where they were measured."""

    environment: Environment
    costs: Costs | None = None


class Header(Record):
    """What an experiment measures; rows of a different one must not be mixed in.

    `models` are digests of the files of target and draft, since a folder of the same name can hold other weights;
    `servers` those of which server each side has, which are too short to find an address with.
    """

    pair: ModelPair
    models: tuple[str, ...]
    servers: tuple[str, ...] = ()
    settings: GenerationSettings
    methods: tuple[str, ...]
    prompts: str  # digest

    @classmethod
    def of(cls, pair: ModelPair, settings: GenerationSettings, methods: Sequence[str], tasks: Sequence[Task]) -> Self:
        """The header of an experiment with these methods on these prompts.

        Raises:
            LoadError: a model is not converted yet.
        """
        here = [model for model in (pair.target, pair.draft) if model is not None and model.path is not None]
        return cls(
            pair=pair,
            models=tuple(files_digest(folder_of(model)) for model in here),
            servers=_server_digests(pair.servers),
            settings=settings,
            methods=tuple(methods),
            prompts=hashlib.sha256("\n".join(map(_task_json, tasks)).encode()).hexdigest(),
        )

    def differences(self, earlier: Self) -> list[str]:
        """How an earlier header differs, in words; the order of methods does not matter."""
        runtime, earlier_runtime = self.pair.runtime, earlier.pair.runtime
        pair, earlier_pair = (each.pair.model_dump(mode="json", exclude={"runtime"}) for each in (self, earlier))
        same = {
            "another pair": pair == earlier_pair,  # paths are left out when it is dumped
            "other model files": self.models == earlier.models,
            "other servers": self.servers == earlier.servers,
            "other settings": (self.settings, runtime) == (earlier.settings, earlier_runtime),
            "other methods": set(self.methods) == set(earlier.methods),
            "other prompts": self.prompts == earlier.prompts,
        }
        return [difference for difference, equal in same.items() if not equal]


class Line(Record, Generic[R]):
    """A line after the header: a finished row, or the facts about an engine. Older load runs name no engine."""

    row: R | None = None
    engine: str | None = None
    facts: EngineFacts | None = None
    environment: Environment | None = None


class SavedRows(NamedTuple, Generic[R]):
    """What a checkpoint holds: facts by engine, and rows in their order."""

    facts: dict[str, EngineFacts]
    rows: list[R]


class Checkpoint:
    """The finished rows of one experiment, in a file."""

    def __init__(self, path: Path) -> None:
        """A checkpoint at this path, which need not exist."""
        self.path = path

    def open(self, header: Header, row: type[R]) -> SavedRows[R]:
        """What the file holds already; it is created if there is none.

        Raises:
            FileError: the file holds rows of something else, or cannot be read.
            SpecdemoError: it cannot be written.
        """
        lines = self._lines()
        if not lines:
            self._write(f"{header.model_dump_json()}\n", "w")
            return SavedRows({}, [])
        differences = self._differences(lines[0], header)
        if differences:
            raise FileError(
                f"{quoted(str(self.path))} holds rows of a run with {', '.join(differences)}; "
                "choose another output path, or delete that file."
            )
        saved = SavedRows[R]({}, [])
        for line in self._parsed(lines[1:], row):
            if line.row is not None:
                saved.rows.append(line.row)
            if line.facts is not None and line.engine is not None:
                saved.facts[line.engine] = line.facts
            if line.environment is not None:
                saved.facts[header.settings.engine] = EngineFacts(environment=line.environment)
        return saved

    def add(self, row: Row) -> None:
        """Append a finished row.

        Raises:
            SpecdemoError: it cannot be written.
        """
        self._append(Line[Any](row=row))

    def add_facts(self, engine: str, facts: EngineFacts) -> None:
        """Append the facts about an engine.

        Raises:
            SpecdemoError: they cannot be written.
        """
        self._append(Line[Any](engine=engine, facts=facts))

    def delete(self) -> None:
        """Remove the file, once its rows are safe elsewhere."""
        self.path.unlink(missing_ok=True)

    def _append(self, line: Line[Any]) -> None:
        self._write(f"{line.model_dump_json(exclude_none=True)}\n", "a")

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

    def _differences(self, line: str, header: Header) -> list[str]:
        try:
            return header.differences(type(header).model_validate_json(line))
        except ValidationError:
            return ["a header from another version"]

    def _parsed(self, lines: list[str], row: type[R]) -> Iterator[Line[R]]:
        for number, line in enumerate(lines, 2):
            try:
                yield Line[row].model_validate_json(line)  # type: ignore[valid-type]
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


def _task_json(task: Task) -> str:
    return task.model_dump_json(exclude_defaults=True)


def _server_digests(servers: Servers | None) -> tuple[str, ...]:
    """A few digits for each side's server, by which another one is noticed though addresses are not kept."""
    sides = [] if servers is None else [servers.plain, servers.speculative]
    texts = ["" if each is None else f"{each.url} {each.model} {each.kind}" for each in sides]
    return tuple(hashlib.sha256(text.encode()).hexdigest()[:_DIGITS] for text in texts)
