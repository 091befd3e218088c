"""Races that `tests/benchmarks/coverage.py` recorded beside other programs, with their true speedups.

The truth of a race is the ratio of seconds, of the same prompt and settings, in quiet races of other processes.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from specdemo.records import Comparison, Run
from specdemo.results import metrics
from tests.support.machines import comparison_of

RECORDED = Path(__file__).parents[1] / "fixtures" / "races.jsonl.gz"
QUIET = 0.1  # share of the processor that others took
_MICRO = 1e-6


class Recorded(NamedTuple):
    """`beside` names what else ran, and `load` is the share of the processor that it took on average."""

    pair: str
    setting: str
    beside: str
    load: float
    truth: float
    comparison: Comparison


def packed(comparison: Comparison) -> dict[str, Any]:
    """Return the times of a comparison, in whole microseconds."""

    def times(run: Run) -> list[list[int]]:
        return [
            [len(step.committed), -1 if step.proposed is None else len(step.proposed), round(step.seconds / _MICRO)]
            for step in run.rounds
        ]

    return {
        "plain": [time for _, _, time in times(comparison.plain)],
        "rounds": times(comparison.speculative),
        "load": comparison.other_load,
        "repeats": [
            {
                "plain": [[round(seconds / _MICRO) for seconds in run] for run in trial.plain_steps],
                "rounds": [[tokens, number, round(time / _MICRO)] for tokens, number, time in trial.round_steps],
                "load": trial.other_load,
            }
            for trial in comparison.repeats
        ],
    }


def seconds_of(comparison: Comparison) -> tuple[float, float]:
    """Both sides' seconds, in the race and its repeats."""
    tokens = metrics.common_tokens(comparison)
    plain = metrics.seconds_to(comparison.plain, tokens) + sum(trial.plain_seconds for trial in comparison.repeats)
    speculative = metrics.seconds_to(comparison.speculative, tokens)
    return plain, speculative + sum(trial.seconds for trial in comparison.repeats)


def recorded_races(path: Path = RECORDED) -> Iterator[Recorded]:
    """Leave out races whose truth is unknown, and quiet ones that something disturbed."""
    with gzip.open(path, "rt") as file:
        lines = [json.loads(line) for line in file]
    comparisons = [comparison_of(line, _MICRO) for line in lines]
    found = list[tuple[tuple[Any, ...], dict[str, Any], Comparison, float]]()
    quiet = defaultdict[tuple[Any, ...], list[tuple[str, tuple[float, float]]]](list)
    for line, comparison in zip(lines, comparisons, strict=True):
        key = line["pair"], line["setting"], line["prompt"]
        shares = [comparison.other_load, *(trial.other_load for trial in comparison.repeats)]
        known = [share for share in shares if share is not None]
        found.append((key, line, comparison, sum(known) / len(known)))
        if line["beside"] == "nothing" and max(known) < QUIET:
            quiet[key].append((line["process"], seconds_of(comparison)))
    for key, line, comparison, load in found:
        elsewhere = [seconds for process, seconds in quiet[key] if process != line["process"]]
        if not elsewhere or (line["beside"] == "nothing" and load >= QUIET):
            continue
        plain, speculative = (sum(side) for side in zip(*elsewhere, strict=True))
        yield Recorded(line["pair"], line["setting"], line["beside"], load, plain / speculative, comparison)
