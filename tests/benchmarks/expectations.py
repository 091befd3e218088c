"""The speedup to expect of each example prompt with a pair's default settings.

    python -m tests.benchmarks.expectations [--pair smollm2 story-pair] [--repeats 6] [--tokens 128]

Writes `assets/expectations.json`, by which the page groups its examples. Run it on a quiet machine. Entries of pairs
that are not measured stay.
"""

import argparse
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from specdemo.engines import load_engine
from specdemo.experiments.plan import PRESETS
from specdemo.experiments.prompts import Task
from specdemo.experiments.rows import Load, points, run
from specdemo.files import ASSETS
from specdemo.models.catalogue import PAIR_VARIABLE, bundled_prompts, default_pair, pair_settings
from specdemo.models.converted import convert_pair
from specdemo.models.devices import instruction_sets
from specdemo.records import ModelPair

PATH = ASSETS / "expectations.json"
REPEATS, TOKENS = 6, 128  # ten minutes for both bundled pairs on two cores


class Expectations(NamedTuple):
    """The entry of one pair, and its key in the file."""

    key: str
    entry: dict[str, Any]


def expectations(pair: ModelPair, load: Load, *, repeats: int = REPEATS, tokens: int = TOKENS) -> Expectations:
    settings = pair_settings(pair, max_new_tokens=tokens)
    prompts = {f"{number}": text for number, text in enumerate(bundled_prompts(pair.target.prompts), 1)}
    tasks = [Task(name=name, task=name, prompt=text) for name, text in prompts.items()]
    *_, last = run(PRESETS["measure"].plan(pair, tasks, settings, repeats=repeats), load)
    found = last.result
    environment = next(iter(found.engines.values())).environment
    sets = ", ".join(instruction_sets())
    where = f"{environment.device} ({sets}), {environment.threads} threads, {found.date}"
    measured = [
        {
            "prompt": prompts[point.part],
            "speedup": round(point.speedup.ratio, 2),
        }
        for point in sorted(points(found, part=lambda row: row.task), key=lambda point: int(point.part))
    ]
    key = f"{pair.target.name}|{pair.draft.name if pair.draft is not None else ''}"
    strategy = f"{settings.engine} {type(settings.strategy).name}"
    return Expectations(key, {"measured_on": f"{where}, {strategy}", "engine": settings.engine, "prompts": measured})


def write(entries: list[Expectations], path: Path = PATH) -> None:
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    text = json.dumps(before | {each.key: each.entry for each in entries}, ensure_ascii=False, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", nargs="+", default=["smollm2", "story-pair"])
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    arguments = parser.parse_args()
    for name in arguments.pair:
        os.environ[PAIR_VARIABLE] = name
        pair = default_pair()
        for _ in convert_pair(pair):
            pass
        found = expectations(pair, load_engine, repeats=arguments.repeats, tokens=arguments.tokens)
        write([found])
        print(f"{found.key}, {datetime.now(UTC):%H:%M}:")
        for each in found.entry["prompts"]:
            print(f"  {each['expect']:6} {each['speedup']:.2f} ({each['low']}–{each['high']})  {each['prompt'][:70]}")


if __name__ == "__main__":
    main()
