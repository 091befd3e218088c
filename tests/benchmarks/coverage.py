"""How often the interval of a short race holds the true speedup, on a quiet machine and beside other programs.

    python -m tests.benchmarks.coverage --out rows.jsonl [--minutes 25] [--races 12]

The truth is what many quiet races of the same request take in all, which needs no estimate. They lie between the
others, over the whole time: on a shared machine, passes of different lengths drift apart by a tenth within minutes,
and with them the true speedup. So there are two truths: that of the quiet races just before and after, and that of
all of them. The races to be judged are short, each with a few repeats, quiet and while processes
that this script starts ask for 25, 50 and 90 % of the processor in bursts of 0.05 to 0.5 s. Three settings of each
pair are meant to lie above, near and below 1×; the truth says where they do. Run it on a machine that does nothing
else. Rows are appended as they are measured, and measured ones are skipped, so that it can be interrupted;
`--minutes` bounds a call. Prints a table in Markdown from all rows.
"""

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import median
from time import monotonic, perf_counter, sleep
from typing import Any, NamedTuple

from specdemo.analysis import metrics
from specdemo.analysis.estimates import Speedup, of_comparison
from specdemo.engines import load_engine
from specdemo.engines.base import Engine
from specdemo.files import json_text
from specdemo.measure.race import race
from specdemo.measure.trials import repeats
from specdemo.models.gguf_convert import convert_pair
from specdemo.models.pairs import bundled_pair, default_pair, initial_settings
from specdemo.presentation import schema
from specdemo.records import Comparison, ModelPair
from specdemo.settings import GenerationSettings

CONDITIONS = {"quiet": 0.0, "25 %": 0.25, "50 %": 0.5, "90 %": 0.9}
"""Shares of the processor that other programs ask for."""
STORY = "Once upon a time there was a fox who"
CODE = "Write a Python function that returns the n-th Fibonacci number."
SETTINGS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "story-pair": {
        "above": (STORY, {"num_assistant_tokens": 4}),
        "near": (STORY, {"drafter": "lookup", "num_assistant_tokens": 2}),
        "below": (STORY, {"num_assistant_tokens": 12, "do_sample": True, "temperature": 2.0, "top_k": 0}),
    },
    "smollm2": {
        "above": (CODE, {"num_assistant_tokens": 2}),
        "near": (CODE, {"drafter": "lookup", "num_assistant_tokens": 1}),
        "below": (CODE, {"num_assistant_tokens": 12}),
    },
}
ENGINES = ("traced", "genai")
_BURSTS = (0.05, 0.5)
_LONGEST = 1800.0  # a burner ends by then, whatever happens


class Place(NamedTuple):
    """What is raced."""

    pair: str
    engine: str
    setting: str


class Measured(NamedTuple):
    """One row: a part of the truth, where `condition` is empty, or a race and its repeats.

    `plain` and `speculative` are all seconds of these sides.
    """

    pair: str
    engine: str
    setting: str
    condition: str
    number: int
    middle: float
    low: float
    high: float
    call: str
    load: float | None
    plain: float = 0.0
    speculative: float = 0.0

    @property
    def place(self) -> Place:
        """What was raced."""
        return Place(self.pair, self.engine, self.setting)


def burn(share: float, seed: int, parent: int) -> None:
    """Take this share of a core in bursts, until the parent is gone."""
    random, until = Random(seed), monotonic() + _LONGEST
    while os.getppid() == parent and monotonic() < until:
        burst = random.uniform(*_BURSTS)
        end = perf_counter() + burst
        while perf_counter() < end:
            pass
        sleep(burst * (1 - share) / share)


@contextmanager
def beside(share: float) -> Iterator[None]:
    """Other programs that ask for this share of every core."""
    context = get_context("spawn")
    cores = os.cpu_count() or 1
    burners = [
        context.Process(target=burn, args=(share, seed, os.getpid()), daemon=True)
        for seed in range(cores if share else 0)
    ]
    for burner in burners:
        burner.start()
    try:
        sleep(1.0 if burners else 0)
        yield
    finally:
        for burner in burners:
            burner.terminate()
            burner.join()


def compared(engine: Engine, prompt: str, settings: GenerationSettings, number: int) -> Comparison:
    """A race with so many repeats."""
    *_, comparison = race(engine, prompt, settings)
    assert isinstance(comparison, Comparison)
    for more in repeats(engine, comparison, number=number):
        comparison = more
    return comparison


def truth(engine: Engine, prompt: str, settings: GenerationSettings, enough: float) -> tuple[float, float]:
    """Seconds of both sides in so many seconds of races, up to the same number of tokens."""
    plain = speculative = 0.0
    while plain + speculative < enough:
        comparison = compared(engine, prompt, settings, 1)
        tokens = metrics.common_tokens(comparison)
        sides = [metrics.seconds_to(run, tokens) for run in (comparison.plain, comparison.speculative)]
        if not all(sides):
            break
        sides = [side + more for side, more in zip(sides, _seconds(comparison), strict=True)]
        plain, speculative = plain + sides[0], speculative + sides[1]
    return plain, speculative


def _seconds(comparison: Comparison) -> tuple[float, float]:
    """Those of the repeats."""
    return sum(trial.plain_seconds for trial in comparison.repeats), sum(
        trial.seconds for trial in comparison.repeats
    )


def measured(place: Place, condition: str, number: int, comparison: Comparison) -> Iterator[Measured]:
    """The row of a race with its repeats, and of the race alone, numbered apart."""
    for sign, each in ((1, comparison), (-1, comparison.model_copy(update={"repeats": ()}))):
        speedup = of_comparison(each)
        if speedup is not None:
            yield row(place, condition, sign * number, speedup, comparison.other_load)


def row(place: Place, condition: str, number: int, speedup: Speedup, load: float | None) -> Measured:
    """What is kept of an estimate."""
    low, high = speedup.low or speedup.middle, speedup.high or speedup.middle
    return Measured(*place, condition, number, speedup.middle, low, high, speedup.call, load)


class Rows:
    """The file of rows."""

    def __init__(self, path: Path) -> None:
        """Read what there is."""
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.rows = [Measured(*json.loads(line)) for line in lines]

    def add(self, *rows: Measured) -> None:
        """Keep rows."""
        self.rows += rows
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(each) + "\n" for each in rows)

    def has(self, place: Place, condition: str, number: int) -> bool:
        """Whether this was measured."""
        return any(
            each.place == place and each.condition == condition and each.number == number for each in self.rows
        )


def pair_of(name: str) -> ModelPair:
    """One of the two bundled pairs."""
    return bundled_pair() if name == "story-pair" else default_pair()


def measure(rows: Rows, pair: str, engine_name: str, arguments: argparse.Namespace, until: float) -> None:
    """All conditions of a pair in an engine, in turns, until the time is up."""
    loaded = pair_of(pair)
    for _ in convert_pair(loaded):
        pass
    engine = load_engine(engine_name, loaded)  # type: ignore[arg-type]
    shared = {"engine": engine_name, "max_new_tokens": arguments.tokens, "ignore_eos": True}
    variants = {
        name: (prompt, initial_settings(loaded.target, **shared | chosen))
        for name, (prompt, chosen) in SETTINGS[pair].items()
    }
    places = {name: Place(pair, engine_name, name) for name in variants}

    def true(number: int) -> None:
        for name, (prompt, settings) in variants.items():
            if not rows.has(places[name], "", number):
                sides = truth(engine, prompt, settings, arguments.truth)
                ratio = sides[0] / sides[1]
                rows.add(Measured(*places[name], "", number, ratio, ratio, ratio, "", None, *sides))
                print(f"{pair} {engine_name} {name}: {ratio:.3f}", flush=True)

    try:
        for number in range(1, arguments.races + 1):
            if monotonic() > until:
                break
            true(number)
            for condition, share in CONDITIONS.items():
                with beside(share):
                    for name, (prompt, settings) in variants.items():
                        if rows.has(places[name], condition, number) or monotonic() > until:
                            continue
                        comparison = compared(engine, prompt, settings, arguments.repeats)
                        rows.add(*measured(places[name], condition, number, comparison))
                        if arguments.keep is not None:
                            path = arguments.keep / "-".join((*places[name], condition.strip(" %"), f"{number}.json"))
                            path.write_text(json_text(schema.to_json(comparison)), encoding="utf-8")
            true(number + 1)  # the minutes of these races end with it
    finally:
        engine.close()


def table(rows: Sequence[Measured]) -> Iterator[str]:
    """Every condition of every pair and engine, then all together."""
    truths = Truths(rows)
    races = [each for each in rows if each.condition and truths.has(each.place)]
    yield (
        "| pair, engine | asked for | races | true speedups | held the truth of its minutes | of the whole time "
        "| wrong side | half-width | said |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    places = sorted({(each.pair, each.engine) for each in races})
    groups = [(f"{pair}, {engine}", {(pair, engine)}) for pair, engine in places]
    groups += [("all", set(places)), ("all, without repeats", set(places))]
    for name, members in groups:
        alone = name.endswith("repeats")
        for condition in CONDITIONS:
            of_it = [
                each
                for each in races
                if (each.pair, each.engine) in members and each.condition == condition and (each.number < 0) == alone
            ]
            if of_it:
                yield f"| {name} | {condition} | {line(of_it, truths)} |"


class Truths:
    """The true speedups: plain over speculative seconds of quiet races."""

    def __init__(self, rows: Sequence[Measured]) -> None:
        """Read them from the rows that are parts of the truth."""
        self._parts: dict[Place, dict[int, Measured]] = {}
        for each in rows:
            if not each.condition:
                self._parts.setdefault(each.place, {})[each.number] = each

    def has(self, place: Place) -> bool:
        """Whether there is one for this place."""
        return place in self._parts

    def overall(self, place: Place) -> float:
        """That of the whole time."""
        return _ratio(list(self._parts[place].values()))

    def near(self, race: Measured) -> float:
        """That of the minutes around a race, which lies between the part of its own number and the next one."""
        parts, number = self._parts[race.place], abs(race.number)
        return _ratio([parts[each] for each in (number, number + 1) if each in parts] or list(parts.values()))


def _ratio(parts: Sequence[Measured]) -> float:
    return sum(each.plain for each in parts) / sum(each.speculative for each in parts)


def line(rows: Sequence[Measured], truths: Truths) -> str:
    """The figures of one condition."""
    near = [each.low <= truths.near(each) <= each.high for each in rows]
    overall = [each.low <= truths.overall(each.place) <= each.high for each in rows]
    wrong = sum(each.call == ("slower" if truths.overall(each.place) > 1 else "faster") for each in rows)
    width = median((each.high / each.low) ** 0.5 - 1 for each in rows)
    true = sorted({truths.overall(each.place) for each in rows})
    said = Counter(each.call for each in rows)
    calls = ", ".join(f"{count} {call}" for call, count in sorted(said.items()))
    cells = (
        len(rows),
        f"{true[0]:.2f}–{true[-1]:.2f}",
        *(f"{sum(held) / len(rows) * 100:.0f} %" for held in (near, overall)),
        wrong,
        f"±{width * 100:.0f} %",
        calls,
    )
    return " | ".join(map(str, cells))


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--races", type=int, default=12, help="of each setting in each condition, at most")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument(
        "--truth", type=float, default=5, metavar="SECONDS", help="of races for each part of the truth"
    )
    parser.add_argument("--pairs", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep every comparison as JSON there")
    parser.add_argument("--table", action="store_true", help="only print the table of what was measured")
    arguments = parser.parse_args()
    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    rows = Rows(arguments.out)
    end = monotonic() + arguments.minutes * 60
    places = [(pair, engine) for pair in arguments.pairs for engine in arguments.engines]
    for done, (pair, engine) in enumerate([] if arguments.table else places):
        measure(rows, pair, engine, arguments, monotonic() + (end - monotonic()) / (len(places) - done))
    print("\n".join(table(rows.rows)))


if __name__ == "__main__":
    main()
