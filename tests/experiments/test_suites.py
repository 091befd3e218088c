import json
from pathlib import Path
from typing import get_args

import pytest

from specdemo.errors import FileError
from specdemo.experiments.suites import Task, bundled_tasks, chosen_tasks, limited, read_tasks
from specdemo.records import Prompts


def written(folder: Path, *lines: object) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_every_known_format_is_read(tmp_path: Path) -> None:
    long = "x " * 60_000  # as long as SPEED-Bench's prompts of 32,000 tokens
    path = written(
        tmp_path,
        {"question_id": 81, "category": "writing", "turns": ["Write a tale.", "Shorten it."], "reference": []},
        {"task_id": "HumanEval/0", "prompt": "def f():", "entry_point": "f", "test": "assert f"},
        "",
        {"prompt": "Once"},
        {"prompt": ["Twice", "Thrice"], "task": "openings"},
        {"question_id": "b3", "category": "low_entropy", "sub_category": "sort", "turns": [long], "multiturn": True},
    )
    tasks = [
        Task(name="81", task="writing", prompt="Write a tale."),
        Task(name="81, turn 2", task="writing", prompt="Shorten it.", before=("Write a tale.",)),
        Task(name="HumanEval/0", task="HumanEval", prompt="def f():"),
        Task(name="4", task="prompts", prompt="Once"),
        Task(name="5", task="openings", prompt="Twice"),
        Task(name="5, turn 2", task="openings", prompt="Thrice", before=("Twice",)),
        Task(name="b3", task="low_entropy", prompt=long),
    ]
    assert chosen_tasks(path, "chat", None) == tasks
    assert chosen_tasks(path, "base", None) == [task for task in tasks if not task.before], "these cannot chat"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_what_windows_writes_is_read_and_only_a_line_feed_ends_a_line(encoding: str, tmp_path: Path) -> None:
    prompts = ["Ein Märchen 🦊", "One\u2028two", "Three\u2029four", "Five\x85six"]
    path = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"prompt": prompt}, ensure_ascii=False) for prompt in prompts]
    path.write_bytes("\r\n".join(lines).encode(encoding))
    assert [task.prompt for task in read_tasks(path)] == prompts


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "Line 2 of 'prompts.jsonl' is not JSON"),
        ({"turns": [" "]}, "Line 2 of 'prompts.jsonl' has no prompt"),
        ({"prompt": ["x", 3]}, "does not fit; write .* turns"),
        ('{"prompt": "x", "score": NaN}', "Line 2 of 'prompts.jsonl' holds NaN or Infinity"),
        ('{"prompt": "\\ud800"}', "Line 2 of 'prompts.jsonl' is not JSON"),
        ({"task_id": 10**400, "prompt": "x"}, "Line 2 of 'prompts.jsonl' does not fit"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_line_is_named(line: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=message):
        read_tasks(written(tmp_path, {"prompt": "x"}, line))


def test_names_used_again_are_numbered(tmp_path: Path) -> None:
    lines = [{"question_id": 1, "category": each, "turns": ["Say.", "Again."]} for each in ("tales", "songs")]
    tasks = read_tasks(written(tmp_path, *lines, {"question_id": "1 (2)", "turns": ["Once"]}))
    assert [task.name for task in tasks] == ["1", "1, turn 2", "1 (2)", "1, turn 2 (2)", "1 (2) (2)"]


def test_files_without_prompts(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="holds no prompts"):
        read_tasks(written(tmp_path, ""))
    with pytest.raises(FileError, match="Cannot read"):
        read_tasks(tmp_path / "nothing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match="Cannot read") as refused:
        read_tasks(tmp_path / "binary")
    assert str(tmp_path) not in str(refused.value), "a visitor is not told where the server keeps files"


def test_a_file_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, *({"prompt": "x" * 50} for _ in range(5)))
    for limit, most, message in (
        ("CHARACTERS", 10, "Line 1 of 'prompts.jsonl' is longer than 10 characters; shorten it"),
        ("LINES", 4, "holds more than 4 prompts; choose a file with fewer"),
        ("BYTES", 10, "is larger than 0 MB; choose a smaller file"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(f"specdemo.experiments.suites.MOST_{limit}", most)
            with pytest.raises(FileError, match=message):
                read_tasks(path)


@pytest.mark.parametrize("kind", get_args(Prompts))
def test_the_bundled_suites_have_several_kinds_of_tasks(kind: Prompts) -> None:
    tasks = bundled_tasks(kind)
    assert len({task.task for task in tasks}) >= 5
    assert len({task.name for task in tasks}) == len({task.prompt for task in tasks}) == len(tasks)


def test_a_limit_takes_from_every_kind() -> None:
    tasks = bundled_tasks("base")
    kinds = {task.task for task in tasks}
    assert {task.task for task in limited(tasks, len(kinds))} == kinds
    assert limited(tasks, 1) == tasks[:1]
    assert limited(tasks, None) == limited(tasks, 999) == tasks
