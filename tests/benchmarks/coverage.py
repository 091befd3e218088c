"""How often the interval of a short race holds the true speedup, on a quiet machine and beside other programs.

    python -m tests.benchmarks.coverage --out HOUR [--minutes 25] [--races 12]

The truth is what many quiet races of the same request take in all, which needs no estimate. They lie between the
others, over the whole time: on a shared machine, passes of different lengths drift apart by a tenth within minutes,
and with them the true speedup. So there are two truths: that of the quiet races just before and after, and that of
all of them. The races to be judged are short, each with a few repeats, quiet and while processes
that this script starts ask for 25, 50 and 90 % of the processor in bursts of 0.05 to 0.5 s. Three settings of each
pair are meant to lie above, near and below 1×; the truth says where they do. Run it on a machine that does nothing
else. The folder HOUR holds rows, appended as they are measured, and every comparison; measured ones are skipped, so
that it can be interrupted; `--minutes` bounds a call. Prints a table in Markdown.

`--table HOUR HOUR` measures nothing: it estimates the kept comparisons of several hours anew, by today's rule.
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

from specdemo import metrics
from specdemo.engines import load_engine
from specdemo.engines.base import Engine
from specdemo.estimate import Speedup, of_comparison
from specdemo.exports import schema
from specdemo.files import json_text
from specdemo.models.converted import convert_pair
from specdemo.models.pairs import bundled_pair, default_pair, initial_settings
from specdemo.race import race
from specdemo.records import Comparison, ModelPair
from specdemo.settings import GenerationSettings
from specdemo.trials import repeats

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
    return Measured(*place, condition, number, speedup.middle, low, high, speedup.strength, load)


class Rows:
    """The file of rows."""

    def __init__(self, folder: Path) -> None:
        """Read what there is."""
        folder.mkdir(parents=True, exist_ok=True)
        self._path = path = folder / "rows.jsonl"
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
        name: (prompt, initial_settings(loaded, **shared | chosen))
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
                        path = kept(arguments.out, places[name], condition, number)
                        path.write_text(json_text(schema.to_json(comparison)), encoding="utf-8")
            true(number + 1)  # the minutes of these races end with it
    finally:
        engine.close()


def kept(folder: Path, place: Place, condition: str, number: int) -> Path:
    """The file of a comparison."""
    return folder / "-".join((*place, condition.strip(" %"), f"{number}.json"))


class Judged(NamedTuple):
    """A race beside the true speedups of its minutes, `near`, and of its hour, `overall`."""

    race: Measured
    near: float
    overall: float


def judged(rows: Sequence[Measured]) -> Iterator[Judged]:
    """The races of an hour."""
    truths = Truths(rows)
    for each in rows:
        if each.condition and truths.has(each.place):
            yield Judged(each, truths.near(each), truths.overall(each.place))


def again(folder: Path) -> Iterator[Measured]:
    """The rows of an hour, its kept comparisons estimated anew."""
    for each in Rows(folder).rows:
        if not each.condition:
            yield each
        elif each.number > 0:
            text = kept(folder, each.place, each.condition, each.number).read_bytes()
            comparison = schema.from_text(text, "measure again")
            yield from measured(each.place, each.condition, each.number, comparison)


def table(races: Sequence[Judged]) -> Iterator[str]:
    """Every condition of every pair and engine, then all together."""
    yield (
        "| pair, engine | load by other programs | races | true speedups | contains the truth of its minutes "
        "| of the whole time | wrong side | half-width | said |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    places = sorted({(each.race.pair, each.race.engine) for each in races})
    groups = [(f"{pair}, {engine}", {(pair, engine)}) for pair, engine in places]
    groups += [("all", set(places)), ("all, without repeats", set(places))]
    for name, members in groups:
        alone = name.endswith("repeats")
        for condition in CONDITIONS:
            of_it = [
                each
                for each in races
                if (each.race.pair, each.race.engine) in members
                and each.race.condition == condition
                and (each.race.number < 0) == alone
            ]
            if of_it:
                yield f"| {name} | {condition} | {line(of_it)} |"


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


def line(races: Sequence[Judged]) -> str:
    """The figures of one condition."""
    near = [row.low <= truth <= row.high for row, truth, _ in races]
    overall = [row.low <= truth <= row.high for row, _, truth in races]
    wrong = sum(row.call == ("slower" if truth > 1 else "faster") for row, _, truth in races)
    width = median((row.high / row.low) ** 0.5 - 1 for row, _, _ in races)
    true = sorted({each.overall for each in races})
    said = Counter(each.race.call for each in races)
    calls = ", ".join(f"{count} {call}" for call, count in sorted(said.items()))
    cells = (
        len(races),
        f"{true[0]:.2f}–{true[-1]:.2f}",
        *(f"{sum(held) / len(races) * 100:.0f} %" for held in (near, overall)),
        wrong,
        f"±{width * 100:.0f} %",
        calls,
    )
    return " | ".join(map(str, cells))


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    hours = parser.add_mutually_exclusive_group(required=True)
    hours.add_argument("--out", type=Path, metavar="HOUR", help="measure into this folder")
    hours.add_argument("--table", type=Path, nargs="+", metavar="HOUR", help="only print the table of these")
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--races", type=int, default=12, help="of each setting in each condition, at most")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument(
        "--truth", type=float, default=5, metavar="SECONDS", help="of races for each part of the truth"
    )
    parser.add_argument("--pairs", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    arguments = parser.parse_args()
    if arguments.out is not None:
        rows = Rows(arguments.out)
        end = monotonic() + arguments.minutes * 60
        places = [(pair, engine) for pair in arguments.pairs for engine in arguments.engines]
        for done, (pair, engine) in enumerate(places):
            measure(rows, pair, engine, arguments, monotonic() + (end - monotonic()) / (len(places) - done))
    races = [each for hour in arguments.table or [arguments.out] for each in judged(list(again(hour)))]
    print("\n".join(table(races)))


if __name__ == "__main__":
    main()
