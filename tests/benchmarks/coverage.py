"""How often a short race's interval holds the true speedup, and how often each kind of headline is right.

    python -m tests.benchmarks.coverage [--minutes 15] [--pairs story-pair smollm2] [--engine traced]

Each pair has settings above, near and below 1×. Each setting is raced with the bundled prompts in turn, with one
repeat, on the quiet machine and while other programs ask for 25, 50 and 90 % of every core in bursts. The true
speedup is the ratio of total seconds in quiet races just before and after, up to the same number of tokens. Run it
on a machine that does nothing else.
"""

import argparse
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import cycle
from multiprocessing import get_context
from random import Random
from statistics import median
from time import monotonic, perf_counter, sleep
from typing import Any, NamedTuple

from specdemo.engines import load_engine
from specdemo.engines.base import Engine
from specdemo.experiments.prompts import bundled_tasks
from specdemo.models.catalogue import bundled_pair, default_pair, pair_settings
from specdemo.models.converted import convert_pair
from specdemo.racing.costs import measure_costs
from specdemo.racing.race import race
from specdemo.racing.trials import repeats
from specdemo.records import Comparison
from specdemo.results import metrics
from specdemo.results.estimate import EVEN, LITTLE, Interval, of_comparison
from specdemo.settings import GenerationSettings

LOADS = {"0 %": 0.0, "25 %": 0.25, "50 %": 0.5, "90 %": 0.9}  # of every core, asked for by other programs
SETTINGS: dict[str, list[dict[str, Any]]] = {  # the lookaheads of each pair lie above, near and below 1×
    "story-pair": [
        {"num_assistant_tokens": 4},
        {"drafter": "lookup", "num_assistant_tokens": 2},
        {"num_assistant_tokens": 8, "do_sample": True, "temperature": 1.0, "top_k": 0},
        {"num_assistant_tokens": 12, "do_sample": True, "temperature": 2.0, "top_k": 0},
    ],
    "smollm2": [{"num_assistant_tokens": number} for number in (2, 4, 6, 12)],
}
_BURSTS = (0.05, 0.5)  # seconds
_LONGEST = 1800.0  # seconds, after which a burner ends in any case


class Raced(NamedTuple):
    pair: str
    load: str
    truth: float
    comparison: Comparison


def burn(share: float, seed: int, parent: int) -> None:
    """Keep a core busy in bursts until the parent is gone."""
    random, until = Random(seed), monotonic() + _LONGEST
    while os.getppid() == parent and monotonic() < until:
        burst = random.uniform(*_BURSTS)
        end = perf_counter() + burst
        while perf_counter() < end:
            pass
        sleep(burst * (1 - share) / share)


@contextmanager
def beside(share: float) -> Iterator[None]:
    context = get_context("spawn")
    burners = [
        context.Process(target=burn, args=(share, seed, os.getpid()), daemon=True)
        for seed in range((os.cpu_count() or 1) if share else 0)
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


def compared(engine: Engine, prompt: str, settings: GenerationSettings) -> Comparison:
    *_, comparison = race(engine, prompt, settings)
    assert isinstance(comparison, Comparison)
    *_, repeated = (comparison, *repeats(engine, comparison, number=1))
    return repeated


def truth(engine: Engine, prompt: str, settings: GenerationSettings, enough: float) -> tuple[float, float]:
    """Return both sides' total seconds for the same tokens, in races of about `enough` seconds."""
    plain = speculative = 0.0
    while plain + speculative < enough:
        comparison = compared(engine, prompt, settings)
        tokens = metrics.common_tokens(comparison)
        plain += metrics.seconds_to(comparison.plain, tokens)
        plain += sum(trial.plain_seconds for trial in comparison.repeats)
        speculative += metrics.seconds_to(comparison.speculative, tokens)
        speculative += sum(trial.seconds for trial in comparison.repeats)
    return plain, speculative


def measure(name: str, arguments: argparse.Namespace, until: float) -> Iterator[Raced]:
    pair = bundled_pair() if name == "story-pair" else default_pair()
    for _ in convert_pair(pair):
        pass
    shared = {"engine": arguments.engine, "max_new_tokens": arguments.tokens, "ignore_eos": True}
    variants = [pair_settings(pair, **shared | chosen) for chosen in SETTINGS[name]]
    tasks = bundled_tasks("base" if name == "story-pair" else "chat")
    Random(0).shuffle(tasks)
    with closing(load_engine(arguments.engine, pair)) as engine:
        costs = measure_costs(engine)
        for prompt in cycle(task.prompt for task in tasks):

            def truths(prompt: str = prompt) -> list[tuple[float, float]]:
                return [truth(engine, prompt, settings, arguments.truth / 2) for settings in variants]

            before, found = truths(), list[tuple[int, str, Comparison]]()
            for load, share in LOADS.items():
                with beside(share):
                    found += [(index, load, compared(engine, prompt, each)) for index, each in enumerate(variants)]
            after = truths()
            for index, load, comparison in found:
                plain, speculative = (sum(sides) for sides in zip(before[index], after[index], strict=True))
                yield Raced(name, load, plain / speculative, comparison.model_copy(update={"costs": costs}))
            print(f"{name}: {prompt[:60]}", file=sys.stderr, flush=True)
            if monotonic() > until:
                return


def table(races: Sequence[Raced]) -> Iterator[str]:
    """Yield a row for every load of every pair, then of all pairs."""
    yield (
        "| pair | load by other programs | races | true speedups | interval holds the truth (goal 90 %) "
        "| wrong “faster” or “slower” (2 %) | wrong “probably” (10 %) | wrong “about even”: truth beyond 1.15 (5 %) "
        "| wrong “not certain”: the other side (50 %) | answers (95 %) | half-width |"
    )
    yield "|" + "---|" * 11
    pairs = list(dict.fromkeys(each.pair for each in races))
    groups = {pair: [each for each in races if each.pair == pair] for pair in pairs} | {"all": races}
    for name, members in groups.items():
        for load in LOADS:
            mine = [each for each in members if each.load == load]
            if mine:
                yield f"| {name} | {load} | {line(mine)} |"


def is_right(speedup: Interval, truth: float) -> bool | None:
    """Whether the headline is right about the side, or about being even; None if it names no side."""
    if speedup.strength == "even":
        return 1 / EVEN <= truth <= EVEN
    if speedup.strength == "uncertain" and abs(math.log(speedup.middle)) < math.log(1 + LITTLE):
        return None
    return (speedup.middle > 1) == (truth > 1)


def line(races: Sequence[Raced]) -> str:
    pairs = [(each.truth, of_comparison(each.comparison)) for each in races]
    found = [(truth, speedup) for truth, speedup in pairs if speedup is not None]
    hits = sum(speedup.low <= truth <= speedup.high for truth, speedup in found)
    wrong = []
    for strength in ("clear", "probable", "even", "uncertain"):
        said = [is_right(speedup, truth) for truth, speedup in found if speedup.strength == strength]
        known = [right for right in said if right is not None]
        wrong.append(f"{known.count(False)} of {len(known)}")
    answers = sum(speedup.strength != "noisy" for _, speedup in found)
    width = median((speedup.high / speedup.low) ** 0.5 - 1 for _, speedup in found)
    truths = [truth for truth, _ in found]
    held, answered = (f"{count / len(found) * 100:.0f} %" for count in (hits, answers))
    cells = [len(found), f"{min(truths):.2f}–{max(truths):.2f}", held, *wrong, answered, f"±{width * 100:.0f} %"]
    return " | ".join(map(str, cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15, help="of all pairs together, about")
    parser.add_argument("--pairs", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--engine", choices=("traced", "genai"), default="traced")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--truth", type=float, default=8, metavar="SECONDS", help="of races for each truth")
    arguments = parser.parse_args()
    races = list[Raced]()
    for number, name in enumerate(arguments.pairs):
        # the next pairs get the minutes that this one leaves
        left, begun = arguments.minutes * 60 / (len(arguments.pairs) - number), monotonic()
        races += measure(name, arguments, begun + left)
        arguments.minutes -= (monotonic() - begun) / 60
    print("\n".join(table(races)))


if __name__ == "__main__":
    main()
