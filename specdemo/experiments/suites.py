"""Prompts to measure: the bundled suite, and JSON Lines in the formats of common benchmarks.

- Spec-Bench and SPEED-Bench: `question_id`, `category`, `turns`, each of which becomes a prompt of its own, preceded
by the earlier ones and the target's answers;
- HumanEval: `task_id`, `prompt`;
- plain: `prompt` and, optionally, `task`; a list of prompts is read as turns.
"""

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, Field, ValidationError

from specdemo.errors import FileError, quoted
from specdemo.files import ASSETS, json_value, read_bytes
from specdemo.records import Prompts, Record

# Limits of a file, enough for SPEED-Bench's prompts of 32,000 tokens.
MOST_BYTES = 128 * 2**20
MOST_LINES = 10_000
MOST_CHARACTERS = 2**20  # of a line
_KINDS = "an object with prompt, or with task_id and prompt, or with question_id, category and turns"
_Name = Annotated[str, Field(max_length=200, coerce_numbers_to_str=True)]


class Task(Record):
    """A prompt, its task category and a name unique in the suite; `before` holds the earlier user turns of a chat."""

    name: str
    task: str
    prompt: str
    before: tuple[str, ...] = ()


class _Line(Record):
    """In any of the three formats."""

    turns: str | list[str] = Field([], validation_alias=AliasChoices("prompt", "turns"))
    task: _Name | None = Field(None, validation_alias=AliasChoices("task", "category"))
    name: _Name | None = Field(None, validation_alias=AliasChoices("task_id", "question_id"))


def bundled_tasks(kind: Prompts) -> list[Task]:
    suites: dict[Prompts, dict[str, list[str]]] = json.loads((ASSETS / "suites.json").read_text(encoding="utf-8"))
    return [
        Task(name=f"{task} {number}", task=task, prompt=prompt)
        for task, prompts in suites[kind].items()
        for number, prompt in enumerate(prompts, 1)
    ]


def typed_tasks(prompts: Sequence[str]) -> list[Task]:
    return [Task(name=f"prompt {number}", task="prompts", prompt=prompt) for number, prompt in enumerate(prompts, 1)]


def read_tasks(path: Path) -> list[Task]:
    """Duplicate names are numbered. FileError: the file is missing or empty, or a line has an unsupported format."""
    data = read_bytes(path, MOST_BYTES, "a file of JSON lines")
    # what PowerShell's `>` writes has a mark at its beginning
    encoding = "utf-16" if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise FileError(f"Cannot read {quoted(path.name)} as text; save it as UTF-8.") from error
    # not `splitlines`: JSON strings may contain other line separators
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > MOST_LINES:
        raise FileError(f"{quoted(path.name)} holds more than {MOST_LINES:,} prompts; choose a file with fewer.")
    tasks = [task for number, line in lines for task in _tasks(path, number, line)]
    if not tasks:
        raise FileError(f"{quoted(path.name)} holds no prompts; write one JSON object per line.")
    seen: Counter[str] = Counter()
    found: dict[str, Task] = {}
    for task in tasks:  # concatenated suites use names again
        name = task.name
        while name in found:
            seen[task.name] += 1
            name = f"{task.name} ({seen[task.name] + 1})"
        found[name] = task.model_copy(update={"name": name})
    return [*found.values()]


def chosen_tasks(path: Path | None, prompts: Prompts, limit: int | None) -> list[Task]:
    """Targets that are not chat models get no later turns. FileError: the file cannot be read or has no prompts."""
    tasks = bundled_tasks(prompts) if path is None else read_tasks(path)
    return limited([task for task in tasks if prompts == "chat" or not task.before], limit)


def limited(tasks: Sequence[Task], limit: int | None) -> list[Task]:
    """Taken from the categories in turn, so that each stays represented."""
    seen: Counter[str] = Counter()
    ranks = []
    for index, task in enumerate(tasks):
        ranks.append((seen[task.task], index))
        seen[task.task] += 1
    return [tasks[index] for index in sorted(index for _, index in sorted(ranks)[:limit])]


def _tasks(path: Path, number: int, line: str) -> Iterator[Task]:
    where = f"Line {number} of {quoted(path.name)}"
    if len(line) > MOST_CHARACTERS:
        raise FileError(f"{where} is longer than {MOST_CHARACTERS:,} characters; shorten it.")
    try:
        value: Any = json_value(line)
    except ValueError as error:
        if re.search(r"\b(NaN|Infinity)\b", line):
            raise FileError(f"{where} holds NaN or Infinity, which JSON lacks; write null or a number.") from error
        raise FileError(f"{where} is not JSON; write {_KINDS}.") from error
    try:
        read = _Line.model_validate(value)
    except ValidationError as error:
        raise FileError(f"{where} does not fit; write {_KINDS}.") from error
    turns = [read.turns] if isinstance(read.turns, str) else read.turns
    if not turns or not all(turn.strip() for turn in turns):
        raise FileError(f"{where} has no prompt; write {_KINDS}.")
    name = read.name or str(number)
    kind = read.task or ("HumanEval" if name.startswith("HumanEval") else "prompts")
    for index, turn in enumerate(turns):
        later = f"{name}, turn {index + 1}" if index else name
        yield Task(name=later, task=kind, prompt=turn, before=tuple(turns[:index]))
