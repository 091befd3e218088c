"""What huge pages are worth: seconds per token of a pair in huge pages, against memory as the system gives it.

    python -m tests.benchmarks.huge_pages [--processes 8] [--races 4] [--engine genai] [--lookahead 1]

Processes with and without them take turns. Printed are, for each side, the ratios of neighbouring processes, and the
amount of memory that was moved.
"""

import argparse
import json
from statistics import median

from specdemo.engines import load_engine
from specdemo.measure.race import race
from specdemo.models.machine import HUGE_PAGES_VARIABLE, huge_page_bytes, in_units
from specdemo.models.pairs import default_pair
from specdemo.settings import GenerationSettings
from specdemo.strategies import LOCAL, EngineName
from tests.benchmarks.clocks import PROMPT, SIDES, apart, last, report, seconds_per_token


def measure(name: EngineName, races: int, lookahead: int) -> dict[str, float]:
    """Median seconds per token of each side, and the bytes in huge pages, in this process."""
    engine = load_engine(name, default_pair())
    settings = GenerationSettings(engine=name, num_assistant_tokens=lookahead, ignore_eos=True)
    found = [last(race(engine, PROMPT, settings)) for _ in range(races)]
    moved = float(huge_page_bytes() or 0)
    engine.close()
    return {side: median(seconds_per_token(one.side(side)) for one in found) for side in SIDES} | {"bytes": moved}


def main() -> None:
    """Start processes one after the other, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=8, help="of each kind")
    parser.add_argument("--races", type=int, default=4)
    parser.add_argument("--engine", choices=LOCAL, default="genai")
    parser.add_argument("--lookahead", type=int, default=1)
    parser.add_argument("--measure", action="store_true", help="in this process, as JSON")
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.engine, arguments.races, arguments.lookahead)))
        return
    options = ("--engine", arguments.engine, "--races", arguments.races, "--lookahead", arguments.lookahead)
    ratios: dict[str, list[float]] = {side: [] for side in SIDES}
    for place in range(arguments.processes):
        turns = ("on", "off") if place % 2 else ("off", "on")
        found = {value: apart("huge_pages", *options, **{HUGE_PAGES_VARIABLE: value}) for value in turns}
        for side in SIDES:
            on, off = (found[value][side] for value in ("on", "off"))
            ratios[side].append(on / off)
            moved = in_units(found["on"]["bytes"])
            print(f"{side}: {on * 1e3:.2f} ms a token, {moved} in huge pages; {off * 1e3:.2f} without", flush=True)
    for name, values in ratios.items():
        report(f"{arguments.engine}, {name}: with / without", values)


if __name__ == "__main__":
    main()
