"""Prompts to measure on: the bundled suite, and files in the formats of common benchmarks.

A file holds one JSON object per line, of any of these kinds:

- Spec-Bench: `question_id`, `category`, `turns`, of which only the first is used;
- HumanEval: `task_id`, `prompt`;
- plain: `prompt` and, optionally, `task`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, Field, ValidationError

from specdemo.errors import FileError
from specdemo.records import Record
from specdemo.resources import ASSETS

_KINDS = "an object with prompt, or with task_id and prompt, or with question_id, category and turns"


class Task(Record):
    """A prompt, its kind of task, and a name that is unique in its suite."""

    name: str
    task: str
    prompt: str


class _Line(Record):
    """Any of the three kinds."""

    prompt: str | None = None
    turns: list[str] | None = Field(None, min_length=1)
    task: str | None = Field(None, validation_alias=AliasChoices("task", "category"))
    name: str | int | None = Field(None, validation_alias=AliasChoices("task_id", "question_id"))


def bundled_tasks() -> list[Task]:
    """The suite that was written for the bundled pair."""
    suite: dict[str, list[str]] = json.loads((ASSETS / "suites.json").read_text(encoding="utf-8"))
    return [
        Task(name=f"{task} {number}", task=task, prompt=prompt)
        for task, prompts in suite.items()
        for number, prompt in enumerate(prompts, 1)
    ]


def read_tasks(path: Path) -> list[Task]:
    """The prompts of a file of JSON lines.

    Raises:
        FileError: the file is missing or empty, or a line is none of the known kinds.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"Cannot read {str(path)!r} as text; choose a file of JSON lines.") from error
    # not `splitlines`: text in JSON may hold other line separators
    tasks = [_task(path, number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not tasks:
        raise FileError(f"{path.name!r} holds no prompts; write one JSON object per line.")
    names = [task.name for task in tasks]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise FileError(f"{path.name!r} names two prompts {twice!r}; give each its own name.")
    return tasks


def limited(tasks: Sequence[Task], limit: int | None) -> list[Task]:
    """At most `limit` prompts, taken from each kind of task in turn, so that all kinds remain."""
    if limit is None or limit >= len(tasks):
        return list(tasks)
    seen: dict[str, int] = {}
    ranks = []
    for task in tasks:
        seen[task.task] = seen.get(task.task, 0) + 1
        ranks.append(seen[task.task])
    kept = sorted(range(len(tasks)), key=lambda index: (ranks[index], index))[:limit]
    return [tasks[index] for index in sorted(kept)]


def _task(path: Path, number: int, line: str) -> Task:
    try:
        value: Any = json.loads(line)
    except ValueError as error:
        raise FileError(f"Line {number} of {path.name!r} is not JSON; write {_KINDS}.") from error
    try:
        read = _Line.model_validate(value)
    except ValidationError as error:
        raise FileError(f"Line {number} of {path.name!r} does not fit; write {_KINDS}.") from error
    prompt = read.prompt or (read.turns[0] if read.turns else None)
    if prompt is None or not prompt.strip():
        raise FileError(f"Line {number} of {path.name!r} has no prompt; write {_KINDS}.")
    humaneval = isinstance(read.name, str) and read.name.startswith("HumanEval")
    task = read.task or ("HumanEval" if humaneval else "prompts")
    return Task(name=str(number if read.name is None else read.name), task=task, prompt=prompt)
