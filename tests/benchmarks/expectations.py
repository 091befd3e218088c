"""What to expect of each example prompt with the settings a pair begins with: speculation wins, is close, or loses.

    python -m tests.benchmarks.expectations [--pair smollm2 story-pair] [--repeats 6] [--tokens 128]

Measures every example prompt of `assets/prompts.json` with each pair, between plain runs, and writes
`assets/expectations.json`, by which the page groups its examples. A prompt whose interval leaves both possible counts
as close. Run it on a quiet machine; entries of pairs that are not measured stay.
"""

import argparse
import json
import os
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from specdemo.engines import load_engine
from specdemo.experiments.bench import REPEATS, BenchPlan
from specdemo.experiments.bench_result import Bench
from specdemo.experiments.plan import Load, run
from specdemo.experiments.suites import Task
from specdemo.experiments.trials import TrialRow, cell_of
from specdemo.files import ASSETS
from specdemo.models.converted import convert_pair
from specdemo.models.devices import instruction_sets
from specdemo.models.pairs import PAIR_VARIABLE, bundled_prompts, default_pair, initial_settings
from specdemo.records import ModelPair
from specdemo.strategies import Strategy

PATH = ASSETS / "expectations.json"
_WORDS = {"faster": "wins", "slower": "loses"}


class Expectations(NamedTuple):
    """The entry of one pair, and under which key it stands."""

    key: str
    entry: dict[str, Any]


def expectations(pair: ModelPair, load: Load, *, repeats: int = 2 * REPEATS, tokens: int = 128) -> Expectations:
    """What was measured of every example prompt, with the strategy and settings that the pair begins with."""
    settings = initial_settings(pair, max_new_tokens=tokens)
    strategy: type[Strategy] = type(settings.strategy)
    prompts = bundled_prompts(pair.target.prompts)
    tasks = [Task(name=prompt[:100], task="examples", prompt=prompt) for prompt in prompts]
    plan = BenchPlan(pair, tasks, settings, [f"{settings.engine} {strategy.name}"], repeats=repeats)
    *_, last = run(plan, load)
    return expected(last.result)


def expected(found: Bench) -> Expectations:
    """The same of a benchmark of the examples."""
    pair, rows = found.header.pair, found.rows
    environment = next(iter(found.engines.values())).environment
    sets = ", ".join(instruction_sets())
    where = f"{environment.device} ({sets}), {environment.threads} threads, {found.date}, {found.header.methods[0]}"
    measured = [_one(task, [row for row in rows if row.prompt == task.name]) for task in found.tasks]
    key = f"{pair.target.name}|{pair.draft.name if pair.draft is not None else ''}"
    engine = found.header.settings.engine
    return Expectations(
        key, {"measured_on": where, "engine": engine, "prompts": [each for each in measured if each is not None]}
    )


def _one(task: Task, rows: list[TrialRow]) -> dict[str, Any] | None:
    cell = cell_of(task.task, rows)
    if cell is None:
        return None
    speedup = cell.speedup
    return {
        "prompt": task.prompt,
        "expect": _WORDS.get(speedup.call, "close"),
        "speedup": round(speedup.middle, 2),
        "low": speedup.low and round(speedup.low, 2),
        "high": speedup.high and round(speedup.high, 2),
    }


def write(entries: list[Expectations], path: Path = PATH) -> None:
    """Add the entries to the file, or replace those of the same pairs."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    text = json.dumps(before | {each.key: each.entry for each in entries}, ensure_ascii=False, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", nargs="+", default=["smollm2", "story-pair"])
    parser.add_argument("--repeats", type=int, default=2 * REPEATS)
    parser.add_argument("--tokens", type=int, default=128)
    arguments = parser.parse_args()
    for name in arguments.pair:
        os.environ[PAIR_VARIABLE] = name
        pair = default_pair()
        for _ in convert_pair(pair):
            pass
        load: Load = partial(_loaded, default=pair)
        found = expectations(pair, load, repeats=arguments.repeats, tokens=arguments.tokens)
        write([found])
        print(f"{found.key}, {datetime.now(UTC):%H:%M}:")
        for each in found.entry["prompts"]:
            print(f"  {each['expect']:6} {each['speedup']:.2f} ({each['low']}–{each['high']})  {each['prompt'][:70]}")


def _loaded(name: Any, pair: ModelPair | None = None, *, default: ModelPair) -> Any:
    return load_engine(name, pair or default)


if __name__ == "__main__":
    main()
