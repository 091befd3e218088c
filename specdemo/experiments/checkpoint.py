"""Checkpoints: append-only JSON Lines files with a header, then one finished row per line.

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

_DIGITS = 4  # so short that many addresses share each digest, and guessing cannot recover the address


class Row(Record):
    """A finished part of an experiment; rows with the same key measure the same part."""

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """The part of the plan that this row measures."""

    @property
    def doing(self) -> str:
        """The current activity, as progress shows it."""
        return "measuring"


R = TypeVar("R", bound=Row)


class EngineFacts(Record):
    """Facts shared by all rows of an engine. `costs` are its step costs, if measured."""

    environment: Environment
    costs: Costs | None = None


class Header(Record):
    """Identity of an experiment; rows of a different one must not be mixed in.

    `models` are digests of the target's and draft's files, since a folder of the same name can hold other weights.
    `servers` are digests of each side's server, too short to recover its address.
    """

    pair: ModelPair
    models: tuple[str, ...]
    servers: tuple[str, ...] = ()
    settings: GenerationSettings
    methods: tuple[str, ...]
    prompts: str  # digest

    @classmethod
    def of(cls, pair: ModelPair, settings: GenerationSettings, methods: Sequence[str], tasks: Sequence[Task]) -> Self:
        """Return the header of an experiment with these methods and prompts.

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
        """Describe how an earlier header differs, ignoring the order of methods."""
        runtime, earlier_runtime = self.pair.runtime, earlier.pair.runtime
        pair, earlier_pair = (each.pair.model_dump(mode="json", exclude={"runtime"}) for each in (self, earlier))
        same = {
            "another pair": pair == earlier_pair,  # dumps leave out paths
            "other model files": self.models == earlier.models,
            "other servers": self.servers == earlier.servers,
            "other settings": (self.settings, runtime) == (earlier.settings, earlier_runtime),
            "other methods": set(self.methods) == set(earlier.methods),
            "other prompts": self.prompts == earlier.prompts,
        }
        return [difference for difference, equal in same.items() if not equal]


class Line(Record, Generic[R]):
    """A line after the header: a finished row, or facts about an engine. Older load runs name no engine."""

    row: R | None = None
    engine: str | None = None
    facts: EngineFacts | None = None
    environment: Environment | None = None


class SavedRows(NamedTuple, Generic[R]):
    """Contents of a checkpoint: facts by engine, and rows in order."""

    facts: dict[str, EngineFacts]
    rows: list[R]


class Checkpoint:
    """A file with the finished rows of one experiment."""

    def __init__(self, path: Path) -> None:
        """Use this path, which need not exist yet."""
        self.path = path

    def open(self, header: Header, row: type[R]) -> SavedRows[R]:
        """Return the file's rows so far, creating the file if necessary.

        Raises:
            FileError: the file holds rows of another experiment, or cannot be read.
            SpecdemoError: the file cannot be written.
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
            SpecdemoError: the file cannot be written.
        """
        self._append(Line[Any](row=row))

    def add_facts(self, engine: str, facts: EngineFacts) -> None:
        """Append the facts about an engine.

        Raises:
            SpecdemoError: the file cannot be written.
        """
        self._append(Line[Any](engine=engine, facts=facts))

    def delete(self) -> None:
        """Remove the file, once its rows are saved elsewhere."""
        self.path.unlink(missing_ok=True)

    def _append(self, line: Line[Any]) -> None:
        self._write(f"{line.model_dump_json()}\n", "a")

    def _lines(self) -> list[str]:
        """Return the complete lines, dropping a truncated one from the file so that appending starts a new line."""
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
        return whole.split("\n")[:-1]  # not `splitlines`: JSON strings may contain other line separators

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
    """Digest each side's server, to notice a change without storing addresses."""
    sides = [] if servers is None else [servers.plain, servers.speculative]
    texts = ["" if each is None else f"{each.url} {each.model} {each.kind}" for each in sides]
    return tuple(hashlib.sha256(text.encode()).hexdigest()[:_DIGITS] for text in texts)
