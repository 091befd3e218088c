"""Pairs worth trying, from `assets/catalogue.json`: where they come from, what they need, what to expect.

Sizes are estimates, from the number of parameters or from a repository's listing. `confirmed` says that the
repository's name was found in public; only the bundled pair has been run here. A published speedup is its author's.
"""

from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, TypeAdapter

from specdemo.errors import UnknownNameError, quoted
from specdemo.files import ASSETS
from specdemo.models.machine import memory_needed
from specdemo.records import Prompts, Record
from specdemo.settings import RuntimeSettings

WeightFormat = Literal["int4", "int8", "fp16"]


class Source(Record):
    """Where a model comes from. `repository` is on the Hub; None where `path` is a bundled folder.

    `format` says whether it is OpenVINO IR already, needs conversion, or is a GGUF `file` of the repository's
    `revision`; `weights` is the resulting precision. `disk_bytes` is an estimate, unless there is a file. A file with
    this `sha256` may come in a `package` of the Python package index, too. `name` is what the model is listed as.
    """

    repository: str | None
    format: Literal["openvino", "convert", "gguf"]
    weights: Literal["int4", "int8", "fp16", "fp32", "Q4_1"]
    disk_bytes: int
    confirmed: bool
    license: str
    gated: bool = False
    trust_remote_code: bool = False
    path: Path | None = None
    name: str | None = None
    file: str | None = None
    revision: str | None = None
    sha256: str | None = None
    package: str | None = None

    @property
    def address(self) -> str:
        """The name by which it is downloaded from the Hub."""
        assert self.repository is not None
        return f"{self.repository}:{self.file}" if self.file is not None else self.repository

    @property
    def conversion(self) -> str:
        """Arguments of `models convert` for this model."""
        trust = " --trust-remote-code" if self.trust_remote_code else ""
        return f"{self.repository} --weight-format {self.weights}{trust}"


class Published(Record):
    """What someone else measured, in words, and the source."""

    text: str
    url: str


class Defaults(Record):
    """Default settings: how the pair is loaded and decodes, where that differs from the usual defaults."""

    runtime: RuntimeSettings = RuntimeSettings()
    generation: dict[str, bool | int | float | str] = Field(default_factory=dict)


class Entry(Record):
    """A pair. `kind` is its draft's, `prompts` what its target was trained on, `reason` why it is not supported."""

    name: str
    title: str
    target: Source
    draft: Source | None
    kind: Literal["model", "eagle3", "dflash", "mtp"]
    prompts: Prompts
    supported: bool
    reason: str | None = None
    published: Published | None = None
    notes: str = ""
    begin: Defaults = Defaults()

    @property
    def sources(self) -> tuple[Source, ...]:
        """The target's, and the draft's if there is one."""
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def disk_bytes(self) -> int:
        """What both take on disk, an estimate."""
        return sum(source.disk_bytes for source in self.sources)

    @property
    def memory_bytes(self) -> int:
        """What the pair takes in memory with GenAI's engine, an estimate."""
        draft = self.draft.disk_bytes if self.draft is not None else 0
        return memory_needed(self.target.disk_bytes, draft, RuntimeSettings().cache_size, "genai")


@cache
def catalogue() -> tuple[Entry, ...]:
    """Every pair, those with something bundled first."""
    return TypeAdapter(tuple[Entry, ...]).validate_json((ASSETS / "catalogue.json").read_bytes())


def find(name: str) -> Entry:
    """The pair of this name.

    Raises:
        UnknownNameError: there is none.
    """
    entries = {entry.name: entry for entry in catalogue()}
    if name not in entries:
        raise UnknownNameError(f"The catalogue has no {quoted(name)}; {suggestion(name, list(entries))}.")
    return entries[name]


def suggestion(name: str, known: list[str]) -> str:
    """What to choose instead of an unknown name."""
    near = get_close_matches(name, known, cutoff=0.4)
    return f"choose {' or '.join(near)}" if near else f"choose one of {', '.join(known)}"
