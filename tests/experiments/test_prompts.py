import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

from specdemo.errors import FileError
from specdemo.experiments import prompts
from specdemo.experiments.prompts import CHAT_FIELDS, PROMPT_FIELDS, Task, bundled_tasks, chosen_tasks, read_prompts
from specdemo.records import Prompts

DOCS = (Path(__file__).parents[2] / "docs" / "measuring.md").read_text()
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]},
]
SHARED = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}, {"from": "human", "value": "A\nB"}]


def task(prompt: str, name: str = "1", kind: str = "some", before: tuple[str, ...] = (), system: str = "") -> Task:
    return Task(name=name, task=kind, prompt=prompt, before=before, system_prompt=system)


def chat(name: str = "1", kind: str = "some", system: str = "Be brief.") -> list[Task]:
    return [task("Hi", name, kind, (), system), task("A\nB", f"{name}, turn 2", kind, ("Hi",), system)]


def lines(*values: object) -> str:
    return "\n".join(value if isinstance(value, str) else json.dumps(value) for value in values)


def table(row: dict[str, object]) -> str:
    """Write one row as pandas does."""
    text = io.StringIO()
    csv.writer(text).writerows([[*row, ""], [*map(str, row.values()), ""]])
    return text.getvalue()


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "tasks"),
    [
        ("some.jsonl", lines({"task_id": "HumanEval/0", "prompt": "def f():"}), [task("def f():", "HumanEval/0")]),
        ("some.jsonl", lines({"text": "Write f.", "code": "def f", "task_id": 601}), [task("Write f.", "601")]),
        ("some.jsonl", lines({"question": "Q", "choices": ["0", "4"]}), [task("Q\n\nA. 0\nB. 4")]),
        ("some.jsonl", lines({"question": "Q", "choices": {"text": ["x"], "label": ["1"]}}), [task("Q\n\nA. x")]),
        ("some.jsonl", lines({"question": [CHAT[:2], CHAT[3:]]}), chat()),
        ("some.jsonl", lines({"params": {"system": CHAT[3]["content"], "turns": ["Q"]}}), [task("Q", system="A\nB")]),
        (
            "some.json",
            lines({"data": [{"paragraphs": [{"context": "C", "qas": [{"id": "5", "question": "Q"}]}]}]}),
            [task("C\n\nQ", "5")],
        ),
        ("some.json", lines({"data": [{"session_id": "a", "payloads": [{"messages": CHAT}]}]}), chat("a")),
        ("some.jsonl", lines({"question": "How many?", "answer": "#### 3"}), [task("How many?")]),
        (
            "some.jsonl",
            lines({"question_id": 81, "category": "writing", "turns": ["Hi", "A\nB"], "reference": []}),
            chat("81", "writing", ""),
        ),
        ("some.jsonl", lines({"question_id": "b", "turns": [{"role": "user", "content": "Hi"}]}), [task("Hi", "b")]),
        (
            "some.json",
            lines([{"instruction": "Do", "input": ""}, {"instruction": "Do", "input": "it", "text": "#"}]),
            [task("Do"), task("Do\n\nit", "2")],
        ),
        ("some.jsonl", lines({"instruction": "Do", "context": "C", "category": "qa"}), [task("Do\n\nC", kind="qa")]),
        ("some.json", lines([{"id": "x", "conversations": SHARED}]), chat("x", system="")),
        ("some.jsonl", lines({"Messages": CHAT}), chat()),
        ("some.json", lines(CHAT), chat()),
        (
            "some.jsonl",
            lines({"custom_id": "r", "body": {"messages": CHAT}}, {"body": {"input": "In", "instructions": "Be"}}),
            [*chat("r"), task("In", "2", system="Be")],
        ),
        (
            "some.jsonl",
            lines({"input": "Q", "context": "C", "dataset": "nqa", "_id": "7"}, {"input": "", "context": "C"}),
            [task("C\n\nQ", "7", "nqa"), task("C", "2")],
        ),
        ("some.jsonl", lines({"conversation_hash": "h", "conversation": CHAT[1:2], "turn": 1}), [task("Hi", "h")]),
        ("some.jsonl", lines({"id": "0", "data": ["Hi", "Hello", "A\nB", "Yes"]}), chat("0", system="")),
        ("some.jsonl", lines({"system_prompt": "Be", "question": "Q", "response": "R"}), [task("Q", system="Be")]),
        ("some.json", lines({"Data": [{"Question": "Who?"}], "Version": 1.0}), [task("Who?")]),
        ("some.json", lines({"features": [{}], "rows": [{"row_idx": 0, "row": {"prompt": "Hi"}}]}), [task("Hi")]),
        ("some.json", lines({"prompts": ["Hi", "Ho"]}), [task("Hi"), task("Ho", "2")]),
        ("some.json", lines({"prompt": {"0": "Hi"}, "source": {"0": "s"}}), [task("Hi", kind="s")]),
        ("some.json", json.dumps([{"problem": "Solve", "subject": "sums"}], indent=1), [task("Solve", kind="sums")]),
        ("some.json", lines({"prompt": "Hi"}, {"prompt": "Ho", "n": float("nan")}), [task("Hi"), task("Ho", "2")]),
        ("some.jsonl", lines("Hi".join('""'), ["Hi", "A\nB"]), [task("Hi"), *chat("2", system="")]),
        ("some.csv", '\ufeffPrompt;Task\r\n"Hi; ""you""\nthere";x\r\n', [task('Hi; "you"\nthere', "2", "x")]),
        ("some.csv", "prompts\nHi, you\n\nHo\n", [task("Hi, you", "2"), task("Ho", "4")]),
        ("some.csv", "Say hi\nHo\n", [task("Say hi"), task("Ho", "2")]),
        ("some.csv", "id,article,highlights\n5,Long,short\n", [task("Long", "5")]),
        ("some.tsv", "Query\tanswer\nHi, you\tx\n", [task("Hi, you", "2")]),
        ("some.tsv", 'id\tprompt\n1\t"First" is what?\n2\t"An open quote\n3\tA lake\n4\tClose it"\n', [
            task('"First" is what?'), task('"An open quote', "2"), task("A lake", "3"), task('Close it"', "4")]),
        ("some.tsv", 'id\tprompt\n1\t"An open quote\n2\tA lake\n3\tClose it"\n', [
            task('"An open quote'), task("A lake", "2"), task('Close it"', "3")]),
        ("some.tsv", 'id\tprompt\n1\t"He said ""Hi"""\n2\t"A\nB"\n', [task('He said "Hi"'), task("A\nB", "2")]),
        ("some.csv", table({"messages": CHAT}), chat("2")),
        ("some.csv", table({"id": "x", "prompt": CHAT}), chat("x")),
        ("some.csv", table({"prompt": ["Hi", "A\nB"]}), chat("2", system="")),
        ("some.csv", table({"id": "x", "prompt": str(CHAT).replace("}, {", "}\n {")}), chat("x")),
        ("some.csv", table({"id": "x", "prompt": "['Hi' 'A\\nB']"}), chat("x", system="")),
        ("some.csv", table({"id": "x", "prompt": "[1, 2]"}), [task("[1, 2]", "x")]),
        ("some.csv", table({"id": "x", "prompt": "['a', \"\\d\", f()]"}), [task("['a', \"\\d\", f()]", "x")]),
        ("some.csv", "release_prompt_id,prompt_text,locale\n7,\"Who, you?\",en\n", [task("Who, you?", "7")]),
        ("some.jsonl", lines({"messages": {name: [each[name] for each in CHAT] for name in CHAT[0]}}), chat()),
        ("some.json", lines({"columns": ["id", "prompt"], "index": [0], "data": [[5, "Hi"]]}), [task("Hi", "5")]),
        ("some.json", lines({"0": {"prompt": "Hi"}, "1": {"prompt": "Ho"}}), [task("Hi"), task("Ho", "2")]),
        ("some.txt", "Prompt\tTask\r\nHi, you\tx\r\n".encode("utf-16"), [task("Hi, you", "2", "x")]),
        ("some.txt", "Hi\r\n  Ho \r\n", [task("Hi"), task("Ho", "2")]),
        ("some.txt", "Hi\n  you\n \n\nHo\n", [task("Hi\n  you"), task("Ho", "2")]),
        ("some", lines({"prompt": "Hi"}, {"prompt": "Ho"}), [task("Hi"), task("Ho", "2")]),
        ("some.txt", "[INST] Hi\n{Ho", [task("[INST] Hi"), task("{Ho", "2")]),
    ],
)  # fmt: skip
def test_every_format_is_read(name: str, content: str | bytes, tasks: list[Task], tmp_path: Path) -> None:
    file = read_prompts(written(tmp_path, name, content))
    assert (file.tasks, file.bad) == (tasks, {})
    assert chosen_tasks(file, "base", None) == [each for each in tasks if not each.before], "these cannot chat"


def test_parquet_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "some.parquet", b"PAR1")
    with monkeypatch.context() as patched:
        for package in ("pyarrow", "pyarrow.parquet"):
            patched.setitem(sys.modules, package, None)
        with pytest.raises(FileError, match="needs the package pyarrow"):
            read_prompts(path)
    with pytest.raises(FileError, match="Cannot read"):  # a folder
        read_prompts(tmp_path)
    with pytest.raises(FileError, match=r"'some\.parquet' is damaged"):
        read_prompts(path)


def test_parquet_files_may_hold_bytes_and_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet: Any = pytest.importorskip("pyarrow.parquet")

    def read(**columns: list[object]) -> Sequence[Task]:
        parquet.write_table(pytest.importorskip("pyarrow").table(columns), tmp_path / "some.parquet")
        return read_prompts(tmp_path / "some.parquet").tasks

    assert read(id=["x"], messages=[CHAT[:2]]) == [task("Hi", "x", system="Be brief.")]
    assert read(id=[b"x"], turns=[[b"Hi", b"A\nB"]]) == chat("x", system="")
    monkeypatch.setattr(prompts, "MAX_BYTES", 10**6)
    with pytest.raises(FileError, match="holds more than"):  # from a file of a few kB
        read(prompt=["x" * 1000] * 5000)


def test_standard_input_is_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hi\n\nHo\n")))
    file = read_prompts(Path("-"))
    assert (file.name, [each.prompt for each in file.tasks]) == ("standard input", ["Hi", "Ho"])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_windows_files_are_read_and_only_line_feeds_end_lines(encoding: str, tmp_path: Path) -> None:
    prompts = ["Ein Märchen 🦊", "One\u2028two", "Three\u2029four", "Five\x85six"]
    text = "\r\n".join(json.dumps({"prompt": prompt}, ensure_ascii=False) for prompt in prompts)
    found = read_prompts(written(tmp_path, "prompts.jsonl", text.encode(encoding)))
    assert [each.prompt for each in found.tasks] == prompts


BAD = {
    "{": "not JSON (EOF while parsing an object)",
    lines({"turns": [" "]}): "its prompt is empty",
    lines({"prompt": ["x", 3]}): "holds an image or something else that is not text",
    '{"prompt": "\\ud800"}': "not JSON",
    lines({"name": "Ann", "age": 3}): "unknown fields ('name' and 'age')",
    lines({"chosen": CHAT, "rejected": CHAT}): "unknown fields ('chosen' and 'rejected')",
    lines({"messages": CHAT[2:3]}): "none of its messages is a user's",
    lines({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}): "is not text",
    "3": "something else that is not text",
    lines({"role": "assistant", "text": "Hello"}): "none of its messages is a user's",
}


@pytest.mark.parametrize(("line", "reason"), BAD.items(), ids=lambda value: str(value)[:40])
def test_a_bad_line_is_named_and_left_out(line: str, reason: str, tmp_path: Path) -> None:
    file = read_prompts(written(tmp_path, "prompts.jsonl", lines({"prompt": "x"}, line)))
    assert reason in file.problems
    assert file.problems.startswith("line 2: ")
    assert [each.prompt for each in file.tasks] == ["x"]
    with pytest.raises(
        FileError, match=rf"holds no prompts: line 1: .*prompts are read from {', '.join(PROMPT_FIELDS)}; chats"
    ):
        read_prompts(written(tmp_path, "prompts.jsonl", line))


def test_tables_name_their_bad_lines(tmp_path: Path) -> None:
    file = read_prompts(written(tmp_path, "some.csv", 'prompt,task\n"a" x,y\nb,c,d\nok,c\n'))
    assert [(numbers, reason[:14]) for reason, numbers in file.bad.items()] == [
        (["row 2"], "its quotes are"), (["row 3"], "it has 3 cells"),
    ]  # fmt: skip
    open_quote = read_prompts(written(tmp_path, "some.csv", 'prompt,task\nok,c\n"a,y\nb,c\n"d" e,c\nlast,c\n'))
    assert [each.prompt for each in open_quote.tasks] == ["ok", "last"]
    assert "so lines 3 to 5 are lost" in next(iter(open_quote.bad)), "no row is lost unnamed"
    assert ([each.prompt for each in file.tasks], "lost" in file.problems) == (["ok"], False)
    with pytest.raises(FileError, match="row 2: unknown fields"):
        read_prompts(written(tmp_path, "some.csv", "name,age\nAnn,3\n"))


def test_a_preview_shows_the_first_prompts_their_number_and_kinds(tmp_path: Path) -> None:
    file = read_prompts(
        written(tmp_path, "a.jsonl", lines({"messages": CHAT}, *(f'"{"x" * 300}"' for _ in "ab"), "{"))
    )
    (about, later, unusable), (first, _, third) = file.about(), file.first()
    assert about == "a.jsonl: 4 prompts (4 of a)."
    assert "target's own answers, not those in the file" in later
    assert "line 4: not JSON" in unusable
    assert prompts._some([*map(str, range(14))]).endswith("10, 11 and 2 more")
    assert first == "1: Be brief. → Hi"
    assert third == f"2: {'x' * 200} …"


def test_repeated_names_are_numbered(tmp_path: Path) -> None:
    twice = [{"question_id": 1, "category": each, "turns": ["Say.", "Again."]} for each in ("tales", "songs")]
    path = written(tmp_path, "some.jsonl", lines(*twice, {"question_id": "1 (2)", "turns": ["Once"]}))
    names = ["1", "1, turn 2", "1 (2)", "1, turn 2 (2)", "1 (2) (2)"]
    assert [each.name for each in read_prompts(path).tasks] == names


def test_files_without_prompts(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="holds no prompts"):
        read_prompts(written(tmp_path, "some.jsonl", ""))
    for name, data in (
        ("nothing", None),
        ("binary", b"\xff\xfe\x00"),
        ("some.xlsx", b"PK\x03\x04x"),
        ("a.jsonl.gz", b"\x1f\x8bno"),
        ("a.yaml", b"prompts:"),
    ):
        path = tmp_path / name if data is None else written(tmp_path, name, data)
        with pytest.raises(FileError, match=r"Cannot read|is damaged") as refused:
            read_prompts(path)
        assert str(tmp_path) not in str(refused.value), "a visitor is not told where the server keeps files"


def test_a_file_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "prompts.jsonl", lines(*({"prompt": "x" * 50} for _ in range(5))))
    monkeypatch.setattr(prompts, "MAX_PROMPTS", 4)
    assert len(chosen_tasks(read_prompts(path), "chat", None)) == 4
    assert "At most 4 of them are measured, from every category in turn." in read_prompts(path).about()
    bomb = written(tmp_path, "bomb.json", json.dumps({"prompt": "x"} | dict.fromkeys(("paragraphs", "qas"), [1] * 9)))
    monkeypatch.setattr(prompts, "MAX_RECORDS", 80)
    with pytest.raises(FileError, match="holds more than 80 prompts or 128 MB of them"):
        read_prompts(bomb)
    squad = {"context": "x" * 900, "qas": [{"question": "Q"}] * 40}
    monkeypatch.setattr(prompts, "MAX_BYTES", 10_000)  # more than the file has
    with pytest.raises(FileError, match="holds more than"):
        read_prompts(written(tmp_path, "squad.jsonl", lines(squad)))
    monkeypatch.setattr(prompts, "MAX_BYTES", 2**20)
    monkeypatch.setattr(prompts, "MAX_CHARACTERS", 10)
    long = written(tmp_path, "long.jsonl", lines("Hi".join('""'), {"turns": ["Hi"] * 257}, {"prompt": "x" * 11}))
    assert read_prompts(long).bad == {
        "it has more than 256 turns": ["line 2"],
        "it is longer than 10 characters": ["line 3"],
    }
    monkeypatch.setattr(prompts, "MAX_BYTES", 200)
    with pytest.raises(FileError, match="is larger than 0 MB; choose a smaller file"):
        read_prompts(path)


def test_the_documented_table_names_every_field() -> None:
    assert {name for name in (*PROMPT_FIELDS, *CHAT_FIELDS) if f"`{name}`" not in DOCS} == set()


@pytest.mark.parametrize("kind", get_args(Prompts))
def test_the_bundled_suites_have_several_kinds_of_tasks(kind: Prompts) -> None:
    tasks = bundled_tasks(kind)
    assert len({task.task for task in tasks}) >= 5
    assert len({task.name for task in tasks}) == len({task.prompt for task in tasks}) == len(tasks)


def test_a_limit_takes_from_every_kind() -> None:
    tasks = bundled_tasks("base")
    kinds = {task.task for task in tasks}
    assert {task.task for task in chosen_tasks(None, "base", len(kinds))} == kinds
    assert chosen_tasks(None, "base", 1) == tasks[:1] == [task(tasks[0].prompt, "openings 1", "openings")]
    assert chosen_tasks(["Hi"], "base", None) == [task("Hi", "prompt 1", "prompts")]
    assert chosen_tasks(None, "base", None) == chosen_tasks(None, "base", 999) == tasks
