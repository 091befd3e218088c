"""Whether the first race of a fresh process says what the tenth says, and what GenAI's own `generate()` does.

    SPECDEMO_PAIR=story-pair python -m tests.benchmarks.first_race [--processes 5] [--races 10] [--lookahead 6]

Prints, for each side, ratios of seconds per token within one process, and their median over processes:

- first / others: the first race after loading against the median of the later ones;
- any later / others: the same for each later race, which is how far two races of a warm process lie apart;
- ours / generate(): the median race against the median of as many calls of `generate()`, by turns.
"""

import argparse
import json
from statistics import median

from specdemo.engines.genai import GenAIEngine
from specdemo.engines.genai.pipelines import as_tensor, generation_config, kind_of
from specdemo.measure.race import race
from specdemo.models.pairs import default_pair
from specdemo.records import Request
from specdemo.settings import GenerationSettings
from tests.benchmarks.clocks import PROMPT, SIDES, apart, last, report, seconds_per_token

GOAL = 0.03


def generated(engine: GenAIEngine, request: Request) -> float:
    """Seconds per token after the first, by the counters of `generate()`."""
    pipeline = engine.pipelines.get(kind_of(request.strategy))
    ids = as_tensor(engine.pipelines.tokenizer.encode_prompt(request))
    result = pipeline.generate([ids], [generation_config(pipeline, request)])[0]
    microseconds = list(result.perf_metrics.raw_metrics.m_durations)[1:]  # of each step; the first is the prefill
    return float(sum(microseconds)) / 1e6 / (len(result.m_generation_ids[0]) - 1)


def measure(races: int, lookahead: int) -> dict[str, dict[str, list[float]]]:
    """Seconds per token of consecutive races and of `generate()`, by side, in this process."""
    engine = GenAIEngine(default_pair())
    settings = GenerationSettings(num_assistant_tokens=lookahead, ignore_eos=True)
    request = Request.of(PROMPT, settings)
    requests = {"plain": request.plain, "speculative": request}
    found: dict[str, dict[str, list[float]]] = {side: {"race": [], "generate": []} for side in SIDES}
    for _ in range(races):
        comparison = last(race(engine, PROMPT, settings))
        for side in SIDES:
            found[side]["race"].append(seconds_per_token(comparison.side(side)))
    for _ in range(races):  # apart from the consecutive races, whose first must be the process's first
        comparison = last(race(engine, PROMPT, settings))
        for side in SIDES:
            found[side].setdefault("paired", []).append(seconds_per_token(comparison.side(side)))
            found[side]["generate"].append(generated(engine, requests[side]))
    engine.close()
    return found


def main() -> None:
    """Start processes one after the other, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--races", type=int, default=10)
    parser.add_argument("--lookahead", type=int, default=6)
    parser.add_argument("--measure", action="store_true", help="in this process, as JSON")
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.races, arguments.lookahead)))
        return
    ratios: dict[str, list[float]] = {}
    for _ in range(arguments.processes):
        found = apart("first_race", "--races", arguments.races, "--lookahead", arguments.lookahead)
        for side in SIDES:
            races, paired, calls = (found[side][what] for what in ("race", "paired", "generate"))
            print(f"{side}, ms a token: {' '.join(f'{seconds * 1e3:.2f}' for seconds in races)}", flush=True)
            others = [races[place] / median(races[1:place] + races[place + 1 :]) for place in range(len(races))]
            ratios.setdefault(f"{side}: first race / others", []).append(others[0])
            ratios.setdefault(f"{side}: any later race / others", []).extend(others[1:])
            ratios.setdefault(f"{side}: race / generate()", []).append(median(paired) / median(calls))
    for name, values in ratios.items():
        report(name, values, 1 + GOAL)


if __name__ == "__main__":
    main()
