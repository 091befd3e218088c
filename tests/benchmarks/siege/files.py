"""Files that somebody damaged: each is read, or refused in a sentence."""

import json
import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specdemo.engines.scripted import ScriptedEngine
from specdemo.errors import SpecdemoError
from specdemo.experiments import PRESETS, Checkpoint, Header, run
from specdemo.experiments.suites import bundled_tasks, read_tasks
from specdemo.exports import schema
from specdemo.models.gguf import inspect_model
from specdemo.race import race
from specdemo.records import Comparison
from specdemo.settings import GenerationSettings
from specdemo.ui.uploads import show_file
from tests.benchmarks.siege.tally import Tally
from tests.support.mutants import mutants

VALUES = ("null", "true", "0", "-1", "5e-324", "1e308", "1e999", "NaN", "[]", "{}", '""', '"\\ud800"', "9" * 400)
DEEP = 5000
_PLAN = PRESETS["bench"].plan(
    ScriptedEngine().pair,
    bundled_tasks("base")[:2],
    GenerationSettings(engine="traced", max_new_tokens=8),
    {"strategies": ["traced constant"]},
    repeats=1,
)
_MARK = "\x02"  # stands in a text for what is put there as it is


def mutated(files: int, seed: int, folder: Path) -> Tally:
    """So many damaged files: comparisons, checkpoints of benchmarks, and prompts, in turn."""
    draw, tally = random.Random(seed), Tally()
    for number in range(files):
        make, read = _KINDS[number % len(_KINDS)]
        path = folder / f"{number}.json"
        path.write_bytes(damaged(make(folder), draw))
        tally.add(_read(read, path))
        path.unlink()
    return tally


def headers(files: int, seed: int, folder: Path) -> Tally:
    """So many damaged GGUF files, as the Models tab and a start read them."""
    tally = Tally()
    for number, content in enumerate(mutants(files, seed)):
        path = folder / f"{number}.gguf"
        path.write_bytes(content)
        tally.add(_read(inspect_model, path))
        path.unlink()
    return tally


def _read(read: Callable[[Path], object], path: Path) -> Tally:
    try:
        read(path)
        return Tally(tried=1, answered=1)
    except SpecdemoError as error:
        return Tally(tried=1, refused=bool(str(error)), unexplained=not str(error))
    except Exception:
        traceback.print_exc()
        return Tally(tried=1, tracebacks=1)


def damaged(lines: list[Any], draw: random.Random) -> bytes:
    """JSON lines with some values replaced, left out or repeated, or with the text cut or changed."""
    lines = json.loads(json.dumps(lines))
    raw = []
    for _ in range(draw.choice((0, 1, 1, 1, 2, 5))):
        part, key = _place(draw.choice(lines), draw)
        if part is None:
            continue
        what = draw.randrange(4)
        if what == 0:
            del part[key]
        elif what == 1 and isinstance(part, list):
            part *= draw.choice((0, 2, 300))
        else:
            raw.append(draw.choice((*VALUES, "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP)))
            part[key] = f"{_MARK}{len(raw) - 1}{_MARK}"
    text = "\n".join(json.dumps(line) for line in lines)
    for index, value in enumerate(raw):
        text = text.replace(json.dumps(f"{_MARK}{index}{_MARK}"), value)
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    if draw.random() < 0.2:
        del data[draw.randrange(len(data)) :]
    if draw.random() < 0.2 and data:
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data)


def _place(value: Any, draw: random.Random) -> tuple[Any, Any]:
    """A container somewhere in a value, and one of its keys."""
    part = key = None
    while isinstance(value, dict | list) and value and (part is None or draw.random() < 0.85):
        part, key = value, draw.choice(sorted(value)) if isinstance(value, dict) else draw.randrange(len(value))
        value = part[key]
    return part, key


def _comparison(folder: Path) -> list[Any]:
    engine = ScriptedEngine(wrong=(4, 7))
    *_, comparison = race(engine, "Say", GenerationSettings(num_assistant_tokens=3))
    assert isinstance(comparison, Comparison)
    return [schema.to_json(comparison)]


def _prompts(folder: Path) -> list[Any]:
    return [
        {"question_id": 81, "category": "writing", "turns": ["Write a tale.", "Shorten it."]},
        {"task_id": "HumanEval/0", "prompt": "def f():"},
        {"prompt": "Once", "task": "openings"},
    ]


def _checkpoint(folder: Path) -> list[Any]:
    """The lines of a whole checkpoint, as a benchmark wrote them."""
    checkpoint = Checkpoint(folder / "checkpoint")
    for _ in run(_PLAN, lambda name, pair: ScriptedEngine(), checkpoint=checkpoint):
        pass
    lines = [json.loads(line) for line in checkpoint.path.read_text(encoding="utf-8").splitlines()]
    checkpoint.delete()
    return lines


def _read_checkpoint(path: Path) -> None:
    Checkpoint(path).open(Header.of(_PLAN))


_KINDS: tuple[tuple[Callable[[Path], list[Any]], Callable[[Path], object]], ...] = (
    (_comparison, lambda path: show_file(path.read_bytes())),
    (_prompts, read_tasks),
    (_comparison, lambda path: show_file(path.read_bytes())),
    (_checkpoint, _read_checkpoint),
)
