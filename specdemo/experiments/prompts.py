"""Prompts to measure: the bundled suites, typed ones, and files as people have them.

A file is cut into records by its content and name; one table says in which fields a record holds its prompt. Of a
chat, every turn of the user is a prompt, after the earlier ones and the target's own answers: those in a file are
another model's, and acceptance after them would not be the target's.
"""

import csv
import json
import re
import warnings
from ast import literal_eval
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import BytesIO, StringIO
from itertools import chain, count, islice, pairwise
from pathlib import Path
from string import ascii_uppercase
from tokenize import TokenError, generate_tokens
from typing import Any, NamedTuple

from pydantic_core import from_json

from specdemo.errors import FileError, UsageError, listed, quoted
from specdemo.files import ASSETS, read_bytes
from specdemo.records import MAX_TURNS, Prompts, Record
from specdemo.text import counted

# The table of formats: fields in any letter case, the preferred one first.
PROMPT_FIELDS = (
    "prompt", "prompt_text", "user_prompt", "instruction", "question", "problem", "problem_statement", "query",
    "input", "inputs", "article", "document", "question_content", "text", "context", "ctx", "dialogue",
)  # fmt: skip
# texts before and after it: SQuAD and LongBench, Alpaca, Dolly
_CONTEXTS = dict.fromkeys(("question", "query", "input"), ("context", "")) | {"instruction": ("", "input", "context")}
# turns of a chat: texts, or objects with role and content; `data` (UltraChat) alternates between both speakers
CHAT_FIELDS = ("messages", "conversations", "conversation", "turns", "dialogue", "contents", "data")
_SYSTEM_FIELDS = ("system_prompt", "system", "system_message", "systeminstruction", "instructions")
_CATEGORY_FIELDS = ("category", "task", "subject", "dataset", "source")
_NAME_FIELDS = (
    "task_id", "question_id", "custom_id", "prompt_id", "release_prompt_id", "conversation_id", "conversation_hash",
    "instance_id", "unique_id", "session_id", "recordid", "uid", "id", "_id",
)  # fmt: skip
# objects around a record: of the datasets server; batches for OpenAI, Anthropic, Gemini, Bedrock; tests of promptfoo
_WRAPPER_FIELDS = ("row", "body", "params", "request", "modelinput", "vars", "item", "inputs")
_NESTED_FIELDS = ("paragraphs", "qas", "payloads")  # records within a record: of SQuAD, of AIPerf's inputs
_ARRAY_FIELDS = ("rows", "prompts", "data", "examples", "questions")  # where an object holds several arrays
_ROLE_FIELDS, _CONTENTS = ("role", "from"), ("content", "value", "text", "parts")
_USER_ROLES, _SYSTEM_ROLES = ("user", "human", "prompter"), ("system", "developer")
_OPENING, _CLOSING = "'\"{[", "'\"}]"  # of items of a list
_JSON_LINES = (".jsonl", ".ndjson")
_MARKUP = (".yaml", ".yml", ".toml", ".xml", ".html")  # their lines are not prompts

MAX_BYTES = 128 * 2**20  # of a file, and of its prompts
MAX_PROMPTS = 10_000  # measured of a longer file, from all categories in turn
MAX_RECORDS = 250_000  # of a file, and prompts in it, read in four seconds; its bytes hold millions of short ones
MAX_CHARACTERS = 2**20  # of a prompt: SPEED-Bench has some of 32,000 tokens
_MAX_SHOWN = 200  # of a name or category, and of a prompt in a preview
_MAX_LISTED = 12  # bad records and categories that are named
_NO_USER_MESSAGE = "none of its messages is a user's"
_FIELDS_ADVICE = f"prompts are read from {', '.join(PROMPT_FIELDS)}; chats from {', '.join(CHAT_FIELDS)}"


class Task(Record):
    """A prompt, its task category and a name unique in the suite; `before` holds the earlier user turns of a chat."""

    name: str
    task: str
    prompt: str
    before: tuple[str, ...] = ()
    system_prompt: str = ""


class PromptFile(NamedTuple):
    """`bad` holds the places of unusable records by reason; they are left out, and `about` names them."""

    name: str
    tasks: Sequence[Task]
    bad: Mapping[str, Sequence[str]]

    @property
    def problems(self) -> str:
        return "; ".join(f"{_some(places)}: {reason}" for reason, places in [*self.bad.items()][:_MAX_LISTED])

    def about(self) -> Iterator[str]:
        kinds = Counter(task.task for task in self.tasks).most_common()
        names = _some([f"{number:,} of {kind}" for kind, number in kinds])
        yield f"{self.name}: {counted(len(self.tasks), 'prompt')} ({names})."
        if len(self.tasks) > MAX_PROMPTS:
            yield f"At most {MAX_PROMPTS:,} of them are measured, from every category in turn."
        if any(task.before for task in self.tasks):
            yield "Later turns of a chat follow the target's own answers, not those in the file."
        if self.bad:
            yield f"Left out: {self.problems}."

    def first(self) -> Iterator[str]:
        for task in self.tasks[:3]:
            cut = [f"{text[:_MAX_SHOWN]} …"[: len(text)] for text in (task.system_prompt, task.prompt)]
            yield f"{task.name}: {' → '.join(filter(None, cut))}"


def _some(names: Sequence[str]) -> str:
    return listed([*names[:_MAX_LISTED], *[f"{len(names) - _MAX_LISTED:,} more"] * (len(names) > _MAX_LISTED)])


def bundled_tasks(kind: Prompts) -> list[Task]:
    suites: dict[Prompts, dict[str, list[str]]] = json.loads((ASSETS / "suites.json").read_text(encoding="utf-8"))
    return [
        Task(name=f"{task} {number}", task=task, prompt=prompt)
        for task, prompts in suites[kind].items()
        for number, prompt in enumerate(prompts, 1)
    ]


def typed_tasks(prompts: Sequence[str]) -> list[Task]:
    return [Task(name=f"prompt {number}", task="prompts", prompt=prompt) for number, prompt in enumerate(prompts, 1)]


def check_no_file_name(prompt: str, advice: str) -> str:
    with suppress(OSError, ValueError):  # too long for a path, for example
        if Path(prompt).is_file():
            raise UsageError(f"The prompt {quoted(prompt)} is the name of a file; {advice}.")
    return prompt


def chosen_tasks(
    source: PromptFile | Sequence[str] | None, prompts: Prompts, limit: int | None, of_suite: int | None = None
) -> list[Task]:
    """Take typed prompts; or those of a file or, without any, of the bundled suite, from all categories in turn, in
    their order, and later turns only for chat models.
    """
    if source is None:
        source, limit = PromptFile("", bundled_tasks(prompts), {}), limit or of_suite
    elif not isinstance(source, PromptFile):
        return typed_tasks(source)
    tasks = [task for task in source.tasks if prompts == "chat" or not task.before]
    ranks = defaultdict[str, Iterator[int]](count)
    ranked = sorted(range(len(tasks)), key=lambda index: next(ranks[tasks[index].task]))
    return [tasks[index] for index in sorted(ranked[: min(limit or MAX_PROMPTS, MAX_PROMPTS)])]


def read_prompts(path: Path) -> PromptFile:
    """Read a file or standard input (`-`).

    Names used again are numbered. FileError: the file is missing, too large, of another kind, or without a prompt.
    """
    name = "standard input" if str(path) == "-" else path.name or str(path)
    bad, tasks = defaultdict[str, list[str]](list), dict[str, Task]()
    copies = defaultdict[str, Iterator[int]](lambda: count(2))
    size = 0
    for read, (place, value) in enumerate(_records(path, name)):
        found = list[Task]()
        try:
            for task in _tasks(value, place.split()[1], name.split(".")[0][:_MAX_SHOWN]):
                found.append(task)
                size += len(task.prompt)  # a long context may belong to many questions
                if size > MAX_BYTES or max(read, len(tasks)) + len(found) > MAX_RECORDS:
                    limit = f"{MAX_RECORDS:,} prompts or {MAX_BYTES // 2**20} MB of them"
                    raise FileError(f"{quoted(name)} holds more than {limit}; choose a smaller file.")
        except ValueError as error:
            bad[str(error)].append(place)
            continue
        for task in found:
            unique = task.name
            while unique in tasks:  # concatenated suites use names again
                unique = f"{task.name} ({next(copies[task.name])})"
            tasks[unique] = task.model_copy(update={"name": unique})
    file = PromptFile(name, [*tasks.values()], bad)
    if not tasks:
        problems = f": {file.problems}" if bad else ""
        raise FileError(f"{quoted(name)} holds no prompts{problems}; {_FIELDS_ADVICE}.")
    return file


# From a file to its records, each with its place; one that cannot be read is a ValueError.
_Records = Iterable[tuple[str, Any]]


def _numbered(what: str, values: Iterable[Any]) -> _Records:
    return ((f"{what} {number}", value) for number, value in enumerate(values, 1))


def _records(path: Path, name: str) -> _Records:
    kind = Path(name.lower()).suffix
    if kind in _MARKUP:
        raise FileError(f"Cannot read prompts from {kind[1:].upper()}; save {quoted(name)} as text, CSV or JSON.")
    data = read_bytes(path, MAX_BYTES, "a text file")
    if data.startswith(b"PAR1"):
        return _columnar(data, name)
    text = decoded(data, name)
    if kind in (".csv", ".tsv") or ("\t" in (heading := text.split("\n", 1)[0]) and _known(heading.split("\t"))):
        return _table(text)
    if kind in (".json", *_JSON_LINES) or text.lstrip().startswith(("{", "[")):
        records = [*_json(text, rather_lines=kind in _JSON_LINES)]
        if kind not in ("", ".txt") or not any(isinstance(value, ValueError) for _, value in records):
            return records
    # blank lines separate prompts of several lines; without any, each line is a prompt
    parts = re.split(r"\n(?:[^\S\n]*\n)+", text.strip())
    parts = text.split("\n") if len(parts) == 1 else parts
    return _numbered("prompt", filter(None, map(str.strip, parts)))


def decoded(data: bytes, name: str) -> str:
    try:  # Excel and PowerShell write UTF-16
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
        if "\0" in text or text.startswith("PK\x03\x04"):  # as of Excel
            raise ValueError("It holds control characters.")
    except ValueError as error:
        raise FileError(f"Cannot read {quoted(name)} as text; save it as text, CSV or JSON, in UTF-8.") from error
    return re.sub(r"\r\n?", "\n", text)


def _columnar(data: bytes, name: str) -> _Records:
    try:
        from pyarrow.parquet import ParquetFile

        # few at once: a long text that is stored once may belong to every row
        batches = ParquetFile(BytesIO(data)).iter_batches(16)
        yield from _numbered("row", map(_decoded, chain.from_iterable(batch.to_pylist() for batch in batches)))
    except ImportError as error:
        advice = "install it with pip install pyarrow, or save the prompts as text, CSV or JSON."
        raise FileError(f"{quoted(name)} needs the package pyarrow; {advice}") from error
    except (OSError, ValueError, RuntimeError) as error:
        raise FileError(f"{quoted(name)} is damaged; choose another file.") from error


def _decoded(value: Any) -> Any:
    """Texts of a Parquet file may be bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list):
        return [*map(_decoded, value)]
    return {key: _decoded(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def _known(names: Iterable[str]) -> bool:
    return not {*PROMPT_FIELDS, *CHAT_FIELDS}.isdisjoint(name.strip(' "').casefold() for name in names)


def _table(text: str) -> _Records:
    """The rows of a table. A single column needs no header; its first row is a header if it is one word.

    In a TSV, quotes are text if they do not fit around cells and every line has its number of cells without them.
    """
    csv.field_size_limit(MAX_BYTES)
    text = re.sub(r"\Asep=.\n", "", text.strip())  # which Excel writes
    heading = text.split("\n", 1)[0]
    delimiter = max(",;\t|", key=lambda mark: (_known(heading.split(mark)), heading.count(mark)))
    single = delimiter not in heading  # then prompts may hold any
    dialect: dict[str, Any] = {"delimiter": "\x1f" if single else delimiter, "skipinitialspace": True}
    names = ["prompt"] if single and not _known([heading]) else next(csv.reader([heading], **dialect))
    if delimiter == "\t" and len({line.count("\t") for line in text.split("\n") if line}) == 1:
        quoted = (row for _, row in _rows(text, names, dialect))
        if any(isinstance(row, ValueError) or "\n" in "".join(row.values()) for row in quoted):
            dialect["quoting"] = csv.QUOTE_NONE
    rows = _rows(text, names, dialect)
    return rows if single and " " in heading else islice(rows, 1, None)


def _rows(text: str, names: Sequence[str], dialect: Mapping[str, Any]) -> _Records:
    reader = csv.reader(StringIO(text), strict=True, **dialect)
    for number in count(1):
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except csv.Error as error:
            lost = f", so lines {line} to {reader.line_num} are lost" if reader.line_num > line else ""
            yield f"row {number}", ValueError(f"its quotes are unbalanced ({error}){lost}")
        except StopIteration:
            return
        else:
            problem = len(cells) > len(names) and ValueError(f"it has {len(cells)} cells under {len(names)} names")
            if cells or number == 1:
                yield f"row {number}", problem or dict(zip(names, cells))  # noqa: B905


def _json(text: str, *, rather_lines: bool) -> _Records:
    """One value, or a value a line: `rather_lines` if the first line is a value of its own."""
    value = _parsed(text)
    # not `splitlines`: JSON strings may contain other line separators
    lines = [(f"line {number}", _parsed(line)) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if isinstance(value, ValueError) or (rather_lines and lines and not isinstance(lines[0][1], ValueError)):
        return lines
    return _numbered("item", _items(value))


def _parsed(text: str) -> Any:
    try:
        return from_json(text)
    except ValueError as error:
        return ValueError(f"not JSON ({str(error).split(' at line')[0]})")


def _items(value: Any) -> list[Any]:
    """An array, an array in an object, a table in any of pandas' forms, or a single object."""
    if isinstance(value, list):
        return [value] if value and all(_text(_lowered(item), *_ROLE_FIELDS) for item in value) else value
    fields = _lowered(value)
    arrays = {name: field for name, field in fields.items() if isinstance(field, list) and field}
    if {"columns", "data"} <= arrays.keys() and all(isinstance(row, list) for row in fields["data"]):
        return [dict(zip(map(str, fields["columns"]), row, strict=False)) for row in fields["data"]]
    has_prompt = any(isinstance(fields.get(name), str) for name in PROMPT_FIELDS)
    if has_prompt or {"prompt", "input", *CHAT_FIELDS[:-1]} & arrays.keys():
        return [value]
    if _known(fields) and all(isinstance(column, dict) for column in fields.values()):
        return [{name: column.get(row) for name, column in value.items()} for row in next(iter(value.values()))]
    if fields and all(isinstance(row, dict) and _known(row) for row in fields.values()):
        return [*fields.values()]
    return next((arrays[name] for name in (*_ARRAY_FIELDS, *arrays) if name in arrays), [value])


def _unfolded(value: Any) -> Any:
    """A list of objects, also from an object of lists, as which datasets store it, or from text in a table's cell."""
    if isinstance(value, str) and value.startswith(("[", "{")):
        parsed = _parsed(value)
        found = _unfolded(_literal(value) if isinstance(parsed, ValueError) else parsed)
        return found if isinstance(found, list) and all(isinstance(item, str | dict) for item in found) else value
    columns = [*value.values()] if isinstance(value, dict) else []
    if columns and all(isinstance(column, list) and len(column) == len(columns[0]) for column in columns):
        return [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]
    return value


def _literal(text: str) -> Any:
    """A list as Python or numpy writes it, the latter without commas; None if it is something else."""
    try:
        if re.search(r"['\"}\]]\s+['\"{\[]", text):
            tokens = [token.string for token in generate_tokens(StringIO(text).readline) if token.string.strip()]
            missing = [last[-1] in _CLOSING and part[0] in _OPENING for last, part in pairwise(["[", *tokens])]
            text = "".join("," * comma + token for comma, token in zip(missing, tokens, strict=True))
        with warnings.catch_warnings(action="ignore"):  # of escape sequences that Python does not know
            return literal_eval(text)
    except (ValueError, SyntaxError, TokenError, MemoryError, RecursionError):
        return None


def _tasks(value: Any, number: str, stem: str) -> Iterator[Task]:
    """Yield every turn of the user; ValueError: there is none."""
    if isinstance(value, ValueError):
        raise value
    fields = _lowered(value)
    for name in filter(fields.__contains__, _WRAPPER_FIELDS):
        fields |= _lowered(fields[name])
    for name in filter(fields.__contains__, _NESTED_FIELDS):
        if isinstance(inner := fields.pop(name, None), list):
            for index, record in enumerate(inner, 1):
                yield from _tasks(fields | _lowered(record), f"{number}.{index}", stem)
            return
    system, turns = _prompts(fields) if fields else _turns(value)
    system = system or next((_content(fields[name]) for name in _SYSTEM_FIELDS if fields.get(name)), "")
    if not all(map(str.strip, turns)):
        raise ValueError("its prompt is empty")
    if len(turns) > MAX_TURNS:
        raise ValueError(f"it has more than {MAX_TURNS} turns")
    if max(map(len, [system, *turns])) > MAX_CHARACTERS:
        raise ValueError(f"it is longer than {MAX_CHARACTERS:,} characters")
    name, kind = (_text(fields, *names).strip()[:_MAX_SHOWN] for names in (_NAME_FIELDS, _CATEGORY_FIELDS))
    for index, turn in enumerate(turns):
        later = f"{name or number}, turn {index + 1}" if index else name or number
        yield Task(name=later, task=kind or stem, prompt=turn, before=tuple(turns[:index]), system_prompt=system)


def _lowered(value: Any) -> dict[str, Any]:
    return {str(name).strip().casefold(): item for name, item in value.items()} if isinstance(value, dict) else {}


def _text(fields: Mapping[str, Any], *names: str) -> str:
    """The first of these fields that is a text or a whole number."""
    for name in names:
        if name in fields and isinstance(fields[name], str | int) and str(fields[name]).strip():
            return str(fields[name])
    return ""


def _prompts(fields: Mapping[str, Any]) -> tuple[str, list[str]]:
    """A record's system message and the user's turns."""
    answer = _text(fields, "role") == "assistant"  # in a tree of messages, such as OpenAssistant's
    for name in filter(fields.__contains__, (*CHAT_FIELDS, *PROMPT_FIELDS)):
        value, text = _unfolded(fields.get(name)), _text(fields, name)
        if isinstance(value, list) and value:
            return _turns(value[::2] if name == "data" and isinstance(value[0], str) else value)
        if name in PROMPT_FIELDS and text and not answer:
            before, *after = _CONTEXTS.get(name, ("",))
            parts = (_text(fields, part) for part in (before, name, *after))
            return "", ["\n\n".join(filter(None, (*parts, _choices(fields))))]
    if answer:
        raise ValueError(_NO_USER_MESSAGE)
    raise ValueError("its prompt is empty" if _known(fields) else f"unknown fields ({_some([*map(quoted, fields)])})")


def _choices(fields: Mapping[str, Any]) -> str:
    """The answers to choose from; those of ARC are in an object."""
    choices = fields.get("choices") or fields.get("options")
    texts = _lowered(choices).get("text", choices)
    lettered = zip(ascii_uppercase, texts if isinstance(texts, list) else (), strict=False)
    return "\n".join(f"{letter}. {text}" for letter, text in lettered)


def _content(value: Any) -> str:
    """The text of a message's content: a text, or parts with texts. ValueError: there is something else."""
    fields = _lowered(value)
    value = next((fields[name] for name in _CONTENTS if fields.get(name) is not None), None if fields else value)
    texts: list[Any] = [_lowered(part).get("text", part) for part in (value if isinstance(value, list) else [value])]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("it holds an image or something else that is not text")
    return "\n".join(texts)


def _turns(value: Any) -> tuple[str, list[str]]:
    """The system message and user turns of a text or messages; answers of assistants and tools are left out."""
    messages = [((_text(_lowered(item), *_ROLE_FIELDS) or "user").casefold(), item) for item in _flat(value)]
    system = [_content(item) for role, item in messages if role in _SYSTEM_ROLES]
    user = [_content(item) for role, item in messages if role in _USER_ROLES]
    if not user:
        raise ValueError(_NO_USER_MESSAGE)
    return "\n\n".join(filter(str.strip, system)), user


def _flat(value: Any) -> list[Any]:
    """The messages of a chat; BFCL puts those of each turn into a list."""
    return [*chain.from_iterable(map(_flat, value))] if isinstance(value, list) else [value]
