"""Recommended pairs, from `assets/catalogue.json`: their sources, requirements and expected results.

Sizes are estimates, from the number of parameters or from a repository's listing. `confirmed` means that the
repository was found in public; only the bundled pair has been run here. A published speedup is its author's.
"""

import shlex
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, TypeAdapter

from specdemo.errors import UnknownNameError, quoted
from specdemo.files import ASSETS
from specdemo.models.devices import memory_needed
from specdemo.records import Prompts, Record
from specdemo.settings import RuntimeSettings
from specdemo.strategies import DraftKindName


def export_command(repository: str, weights: str, folder: str, *, trust: bool = False) -> str:
    options, place = " --trust-remote-code" * trust, shlex.quote(folder)
    return f"optimum-cli export openvino --model {repository} --weight-format {weights}{options} {place}"


class Source(Record):
    """A model's source. `repository` is on the Hub; None if `path` is a bundled folder.

    `format` says whether it is OpenVINO IR already, needs conversion, or is a GGUF `file` of the repository's
    `revision`; `weights` is the resulting precision. `disk_bytes` is an estimate, unless there is a file. A file with
    this `sha256` may also come in a `package` of the Python package index. `name` is the model's name in listings.
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
        """Name by which it is downloaded from the Hub."""
        assert self.repository is not None
        return f"{self.repository}:{self.file}" if self.file is not None else self.repository

    @property
    def exported_name(self) -> str:
        """Name of its folder in the models directory, if it must be exported first."""
        return f"{(self.repository or '').rpartition('/')[-1]}-{self.weights}-ov"

    def export_command(self, folder: str) -> str:
        return export_command(self.repository or "", self.weights, folder, trust=self.trust_remote_code)


class Published(Record):
    text: str
    url: str


class Defaults(Record):
    """Default runtime and generation settings of a pair: arithmetic in which both sides' outputs can be identical."""

    runtime: RuntimeSettings = RuntimeSettings(precision="f32", kv_cache_precision="f32", dynamic_quantization="auto")
    generation: dict[str, bool | int | float | str] = Field(default_factory=dict)


class Entry(Record):
    """A pair. `kind` is its draft's, `prompts` what its target was trained on, `reason` why it is not supported."""

    name: str
    title: str
    target: Source
    draft: Source | None
    kind: DraftKindName
    prompts: Prompts
    supported: bool
    reason: str | None = None
    published: Published | None = None
    notes: str = ""
    begin: Defaults = Defaults()

    @property
    def sources(self) -> tuple[Source, ...]:
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def disk_bytes(self) -> int:
        return sum(source.disk_bytes for source in self.sources)

    @property
    def memory_bytes(self) -> int:
        """Estimated memory of the pair with GenAI's engine."""
        draft = self.draft.disk_bytes if self.draft is not None else 0
        return memory_needed(self.target.disk_bytes, draft, RuntimeSettings().cache_size, "genai")


@cache
def catalogue() -> tuple[Entry, ...]:
    return TypeAdapter(tuple[Entry, ...]).validate_json((ASSETS / "catalogue.json").read_bytes())


def find(name: str) -> Entry:
    entries = {entry.name: entry for entry in catalogue()}
    if name not in entries:
        raise UnknownNameError(f"The catalogue has no {quoted(name)}; {suggestion(name, list(entries))}.")
    return entries[name]


def suggestion(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, cutoff=0.4)
    return f"choose {' or '.join(near)}" if near else f"choose one of {', '.join(known)}"
