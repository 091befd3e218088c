"""Prompts to measure: the bundled suites, typed ones, and files as people have them.

A file is cut into records by its content and name; one table says in which fields a record holds its prompt. Of a
chat, every turn of the user is a prompt, after the earlier ones and the target's own answers: those in a file are
another model's, and acceptance after them would not be the target's.
"""

import codecs
import csv
import gzip
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO, StringIO
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import from_json

from specdemo.errors import FileError, listed, quoted
from specdemo.files import ASSETS, is_text, read_bytes
from specdemo.records import Prompts, Record
from specdemo.text import counted

# The table of formats: fields in any letter case, the preferred one first.
TEXTS = (
    "prompt", "instruction", "question", "problem", "problem_statement", "query", "input", "inputs", "article",
    "document", "text", "context",
)  # fmt: skip
_BEFORE = dict.fromkeys(("question", "query", "input"), "context")  # SQuAD, LongBench
_AFTER = {"instruction": ("input", "context")}  # Alpaca, Dolly
# turns of a chat: texts, or objects with role and content; `data` (UltraChat) alternates between both speakers
CHATS = ("messages", "conversations", "conversation", "turns", "dialogue", "contents", "data")
SYSTEMS = ("system_prompt", "system", "system_message", "instructions")
CATEGORIES = ("category", "task", "subject", "dataset", "source")
NAMES = ("task_id", "question_id", "custom_id", "prompt_id", "conversation_id", "conversation_hash", "id", "_id")
_WRAPPERS = ("row", "body", "params")  # of the datasets server, of batches for OpenAI and for Anthropic
_ARRAYS = ("rows", "prompts", "data", "examples", "questions")  # where an object holds several arrays
_JUDGED = {"conversation_a", "conversation_b", "chosen", "rejected"}
_ROLES, _CONTENTS = ("role", "from"), ("content", "value", "text", "parts")
_USERS, _SYSTEM_ROLES = {"user", "human", "prompter"}, {"system", "developer"}
_TABLES = {",": "CSV", ";": "CSV with semicolons", "\t": "TSV", "|": "table", "\x1f": "a single column"}
_SUFFIXES = re.compile(r"(\.(txt|[ct]sv|jsonl?|ndjson|parquet))?(\.gz)?$", re.IGNORECASE)
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # what Excel and PowerShell write

MOST_BYTES = 128 * 2**20  # unpacked
MOST_PROMPTS = 10_000  # measured of a longer file, from all categories in turn
MOST_CHARACTERS = 2**20  # of a prompt: SPEED-Bench has some of 32,000 tokens
_MOST_LETTERS = 200  # of a name or category, and of a prompt in a preview
_LISTED = 12  # bad records and kinds that are named
_OTHERS = "save it as text, CSV or JSON"
_FIELDS = f"a prompt stands in {', '.join(TEXTS)}; a chat in {', '.join(CHATS)}"


class Task(Record):
    """A prompt, its task category and a name unique in the suite; `before` holds the earlier user turns of a chat."""

    name: str
    task: str
    prompt: str
    before: tuple[str, ...] = ()
    system_prompt: str = ""


class _Content(NamedTuple):
    """The format in words, what a record is called, and the records with their numbers."""

    kind: str
    unit: str
    records: Iterable[tuple[int, Any]]


class PromptFile(NamedTuple):
    """`bad` holds the unusable records by reason."""

    name: str
    kind: str
    tasks: Sequence[Task]
    bad: Mapping[str, Sequence[str]]

    def usable(self, *, skip_bad: bool) -> Sequence[Task]:
        """FileError: there is no prompt or, unless `skip_bad`, a record without one."""
        what = f"{quoted(self.name)} ({self.kind})"
        if not self.tasks:
            raise FileError(f"{what} holds no prompts{': ' * bool(self.bad)}{self.problems}; {_FIELDS}.")
        if self.bad and not skip_bad:
            raise FileError(f"{what} cannot be read in part: {self.problems}; correct it, or skip them (--skip-bad).")
        return self.tasks

    @property
    def problems(self) -> str:
        return "; ".join(f"{_some(numbers)}: {reason}" for reason, numbers in [*self.bad.items()][:_LISTED])

    def preview(self) -> Iterator[str]:
        """Yield what the file holds, then its first three prompts."""
        kinds = Counter(task.task for task in self.tasks)
        names = _some([f"{kind} {count:,}" for kind, count in kinds.most_common()])
        yield f"{self.name} ({self.kind}): {counted(len(self.tasks), 'prompt')} ({names or 'none'})."
        if any(task.before for task in self.tasks):
            yield "Later turns of a chat follow the target's own answers, not those in the file."
        if self.bad:
            yield f"Unusable: {self.problems}."
        for task in self.tasks[:3]:
            cut = [f"{text[:_MOST_LETTERS]} …"[: len(text)] for text in (task.system_prompt, task.prompt)]
            yield f"{task.name}: {' → '.join(filter(None, cut))}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    return listed([*names[:_LISTED], *([f"{more:,} more"] if more > 0 else [])]) if names else ""


def bundled_tasks(kind: Prompts) -> list[Task]:
    suites: dict[Prompts, dict[str, list[str]]] = json.loads((ASSETS / "suites.json").read_text(encoding="utf-8"))
    return [
        Task(name=f"{task} {number}", task=task, prompt=prompt)
        for task, prompts in suites[kind].items()
        for number, prompt in enumerate(prompts, 1)
    ]


def typed_tasks(prompts: Sequence[str]) -> list[Task]:
    return [Task(name=f"prompt {number}", task="prompts", prompt=prompt) for number, prompt in enumerate(prompts, 1)]


def chosen_tasks(
    file: PromptFile | None, prompts: Prompts, limit: int | None, *, skip_bad: bool = False
) -> list[Task]:
    """Targets that are not chat models get no later turns. FileError: as `PromptFile.usable`."""
    tasks = bundled_tasks(prompts) if file is None else file.usable(skip_bad=skip_bad)
    return limited([task for task in tasks if prompts == "chat" or not task.before], limit)


def limited(tasks: Sequence[Task], limit: int | None) -> list[Task]:
    """Taken from the categories in turn, so that each stays represented."""
    seen: Counter[str] = Counter()
    ranks = []
    for index, task in enumerate(tasks):
        ranks.append((seen[task.task], index))
        seen[task.task] += 1
    return [tasks[index] for index in sorted(index for _, index in sorted(ranks)[: limit or MOST_PROMPTS])]


def read_prompts(path: Path, *, whole: bool = False) -> PromptFile:
    """Read a file, a folder saved by Hugging Face datasets, or standard input (`-`); `whole`: a text is one prompt.

    Names used again are numbered. FileError: the file is missing, too large, or of another kind.
    """
    name = "standard input" if str(path) == "-" else path.name or str(path)
    content = _saved_dataset(path) if path.is_dir() else _content(name, _read(path, name), whole=whole)
    bad, tasks, seen = dict[str, list[str]](), dict[str, Task](), Counter[str]()
    for number, value in content.records:
        try:
            found = [*_tasks(value, number, _SUFFIXES.sub("", name)[:_MOST_LETTERS])]
        except ValueError as error:
            bad.setdefault(str(error), []).append(f"{content.unit} {number}")
            continue
        for task in found:
            unique = task.name
            while unique in tasks:  # concatenated suites use names again
                seen[task.name] += 1
                unique = f"{task.name} ({seen[task.name] + 1})"
            tasks[unique] = task.model_copy(update={"name": unique})
    return PromptFile(name, content.kind, [*tasks.values()], bad)


# From a file to its records; one that cannot be read is a ValueError in its place.


def _read(path: Path, name: str) -> bytes:
    data = sys.stdin.buffer.read(MOST_BYTES + 1) if str(path) == "-" else read_bytes(path, MOST_BYTES, "a text file")
    if data.startswith(b"\x1f\x8b"):
        try:
            with gzip.open(BytesIO(data)) as file:
                data = file.read(MOST_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise FileError(f"{quoted(name)} is damaged; compress it again.") from error
    if len(data) > MOST_BYTES:
        raise FileError(f"{quoted(name)} is larger than {MOST_BYTES // 2**20} MB; choose a smaller file.")
    return data


def _content(name: str, data: bytes, *, whole: bool) -> _Content:
    if data.startswith(b"PAR1"):
        return _parquet(name, data)
    try:
        text = data.decode("utf-16" if data[:2] in _MARKS else "utf-8-sig")
        if "\0" in text or text.startswith("PK\x03\x04"):
            raise ValueError("It holds control characters.")
    except ValueError as error:
        raise FileError(f"Cannot read {quoted(name)} as text; {_OTHERS}, in UTF-8.") from error
    kind = _SUFFIXES.findall(name.lower())[0][1]
    if kind in ("csv", "tsv"):
        return _table(text)
    if kind.startswith(("json", "ndjson")) or text.lstrip().startswith(("{", "[")):
        found = _json(text, rather_lines=kind in ("jsonl", "ndjson"))
        if kind not in ("", "txt") or not any(isinstance(value, ValueError) for _, value in found.records):
            return found
    text = re.sub(r"\r\n?", "\n", text)
    if "\t" in text and _known(text.split("\n", 1)[0].split("\t")):
        return _table(text)  # Excel's "Unicode text"
    return _Content("text", "line", [(1, text.rstrip())] if whole else _texts(text))


def _known(names: Iterable[str]) -> bool:
    return not {*TEXTS, *CHATS}.isdisjoint(name.strip().casefold() for name in names)


def _texts(text: str) -> Iterator[tuple[int, str]]:
    """Blank lines separate prompts of several lines; without any, each line is a prompt."""
    several = re.search(r"\n\s*\n", text.strip())
    for full, group in groupby(enumerate(text.split("\n"), 1), lambda line: bool(line[1].strip())):
        lines = [*group] if full else []
        if several and lines:
            yield lines[0][0], "\n".join(line.rstrip() for _, line in lines)
        else:
            yield from ((number, line.strip()) for number, line in lines)


def _table(text: str) -> _Content:
    """With a header, which may be left out of a single column; a header is one word."""
    csv.field_size_limit(MOST_BYTES)
    text = re.sub(r"\Asep=.\r?\n", "", text)  # which Excel writes

    def read(delimiter: str) -> Iterator[tuple[int, Any]]:
        rows = csv.reader(StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
        while True:
            number = rows.line_num + 1
            try:
                yield number, next(rows)
            except csv.Error as error:
                yield number, ValueError(f"its quotes are not in pairs ({error})")
            except StopIteration:
                return

    def header(delimiter: str) -> list[str]:
        _, names = next(read(delimiter), (1, []))
        return [] if isinstance(names, ValueError) else names

    *several, one = _TABLES
    delimiter = max(several, key=lambda each: (_known(header(each)), len(header(each))))
    if len(header(delimiter)) < 2:  # then prompts may hold any delimiter
        delimiter = one
    names = header(delimiter)
    single = delimiter == one and not _known(names)

    def records() -> Iterator[tuple[int, Any]]:
        for number, row in read(delimiter):
            if isinstance(row, ValueError):
                yield number, row
            elif (number > 1 or (single and " " in names[0])) and any(map(str.strip, row)):
                extra = ValueError(f"it has {len(row)} cells under {len(names)} names")
                yield number, row[0] if single else extra if len(row) > len(names) else dict(zip(names, row))  # noqa: B905

    return _Content(_TABLES[delimiter], "line", records())


def _json(text: str, *, rather_lines: bool) -> _Content:
    """One value, or a value a line: `rather_lines` if the first line is a value of its own."""
    whole = _parsed(text)
    # not `splitlines`: JSON strings may contain other line separators
    lines = [(number, _parsed(line)) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if isinstance(whole, ValueError) or (rather_lines and lines and not isinstance(lines[0][1], ValueError)):
        return _Content("JSON Lines", "line", lines)
    return _Content("JSON", "item", [*enumerate(_records(whole), 1)])


def _parsed(text: str) -> Any:
    try:
        return from_json(text)
    except ValueError as error:
        return ValueError(f"not JSON ({str(error).split(' at line')[0]})")


def _records(value: Any) -> list[Any]:
    """The records of a JSON file: an array, an array in an object, columns, named objects, or a single one."""
    if isinstance(value, list):
        messages = value and all(isinstance(each, dict) and _first(each, _ROLES) for each in value)
        return [value] if messages else value
    fields = _lowered(value) if isinstance(value, dict) else {}
    arrays = {name: each for name, each in fields.items() if isinstance(each, list) and each}
    if any(isinstance(fields.get(name), str) for name in TEXTS) or {"prompt", "input", *CHATS[:-1]} & arrays.keys():
        return [value]
    if fields and all(isinstance(each, dict) for each in fields.values()):
        if _known(fields):  # pandas writes columns
            return [{name: column.get(row) for name, column in value.items()} for row in next(iter(value.values()))]
        return [{"id": name, **each} for name, each in value.items()]
    names = [name for name in _ARRAYS if name in arrays] or ([*arrays] if len(arrays) == 1 else [])
    return arrays[names[0]] if names else [value]


def _parquet(name: str, data: bytes) -> _Content:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    except ImportError as error:
        raise FileError(f"{quoted(name)} is Parquet, which needs pyarrow; install it, or {_OTHERS}.") from error
    try:
        return _Content("Parquet", "row", [*enumerate(read_table(BytesIO(data)).to_pylist(), 1)])
    except (ArrowException, OSError) as error:
        raise FileError(f"{quoted(name)} is damaged; get it again.") from error


def _saved_dataset(path: Path) -> _Content:
    try:
        from datasets import Dataset, load_from_disk
    except ImportError as error:
        advice = f"install datasets if `save_to_disk` wrote it, or {_OTHERS}"
        raise FileError(f"{quoted(path.name)} is a folder; {advice}.") from error
    try:
        found = load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise FileError(f"{quoted(path.name)} is a folder, but no saved dataset; choose a file.") from error
    rows = found if isinstance(found, Dataset) else chain.from_iterable(found.values())
    return _Content("saved dataset", "row", enumerate(rows, 1))


# From a record to its prompts.


def _tasks(value: Any, number: int, stem: str) -> Iterator[Task]:
    """Yield every turn of the user; ValueError: there is none."""
    if isinstance(value, ValueError):
        raise value
    fields = _lowered(value) if isinstance(value, dict) else {}
    for name in _WRAPPERS:
        fields |= _lowered(fields[name]) if isinstance(fields.get(name), dict) else {}
    system, turns = _prompts(fields) if isinstance(value, dict) else _turns([value] if _given(value) else value)
    system = system or next(filter(None, (_given(fields.get(name)) for name in SYSTEMS)), "")
    if not all(turn.strip() and is_text(turn) for turn in turns):
        raise ValueError("its prompt is empty")
    if max(map(len, [system, *turns])) > MOST_CHARACTERS:
        raise ValueError(f"it is longer than {MOST_CHARACTERS:,} characters")
    name, kind = _first(fields, NAMES) or str(number), _first(fields, CATEGORIES) or stem
    for index, turn in enumerate(turns):
        later, before = f"{name}, turn {index + 1}" if index else name, tuple(turns[:index])
        yield Task(name=later, task=kind, prompt=turn, before=before, system_prompt=system)


def _lowered(fields: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name).strip().casefold(): value for name, value in fields.items()}


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> str:
    """The first of these fields that is a text or a whole number."""
    values = (str(each).strip() for name in names if isinstance(each := fields.get(name), str | int))
    return next(filter(None, values), "")[:_MOST_LETTERS]


def _given(value: Any) -> str:
    return value if isinstance(value, str) and value.strip() else ""


def _prompts(fields: Mapping[str, Any]) -> tuple[str, list[str]]:
    """A record's system message and the user's turns."""
    for name in (*CHATS, *TEXTS):
        value = fields.get(name)
        if name in CHATS and isinstance(value, str) and value.lstrip().startswith("["):  # in a cell of a table
            value = _parsed(value)
        if isinstance(value, list) and value:
            return _turns(value[::2] if name == "data" and all(map(_given, value)) else value)
        if name in TEXTS and _given(value):
            around = [_BEFORE.get(name, ""), name, *_AFTER.get(name, ())]
            return "", ["\n\n".join(filter(None, (_given(fields.get(each)) for each in around)))]
    if _JUDGED & fields.keys():
        raise ValueError("it holds answers to be judged (conversation_a, chosen …), not prompts")
    raise ValueError("its prompt is empty" if _known(fields) else f"unknown fields ({_some([*map(quoted, fields)])})")


def _turns(items: Any) -> tuple[str, list[str]]:
    """The same of turns or messages; answers of assistants and tools are left out."""
    if not isinstance(items, list):
        raise ValueError(f"{quoted(items)} is no prompt")
    system, turns = list[str](), list[str]()
    for item in items:
        fields = _lowered(item) if isinstance(item, dict) else {"content": item}
        role = (_first(fields, _ROLES) or "user").casefold()
        if role in _USERS | _SYSTEM_ROLES:
            parts = next((fields[name] for name in _CONTENTS if fields.get(name) is not None), None)
            several = parts if isinstance(parts, list) else [parts]
            texts = [_lowered(part).get("text") if isinstance(part, dict) else part for part in several]
            if not all(isinstance(text, str) for text in texts):
                raise ValueError("a message holds an image or something else that is no text")
            (turns if role in _USERS else system).append("\n".join(map(str, texts)))
    if not turns:
        raise ValueError("none of its messages is a user's")
    return "\n\n".join(filter(str.strip, system)), turns
