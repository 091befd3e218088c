"""Simulated races with a chosen true speedup, on quiet and busy machines."""

from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from specdemo.records import Comparison, DraftToken, Round, Run, Side, Token, Trial, outcomes_from_counts
from specdemo.results import metrics
from tests.support.proposals import compared
from tests.support.scripted import ScriptedEngine

# The share of the processor that other programs take, and how much that slows down single steps and moments (standard
# deviations of logarithms).
MACHINES = {"quiet": (0.01, 0.03, 0.02), "busy": (0.15, 0.1, 0.15), "crowded": (0.45, 0.3, 0.3)}
MOMENT = 12  # steps; about as long as a part of a run
TOKEN = Token(id=7, text=" a")
TOKENS, LOOKAHEAD, ACCEPTANCE = 127, 3, 0.6  # decoded ones


@cache
def quiet_comparison() -> Comparison:
    return compared(ScriptedEngine())


def simulated(machine: str, truth: float, *, seed: int, step: float = 0.010, repeats: int = 4) -> Comparison:
    """Race with this speedup on an undisturbed machine."""
    random, (load, steps, moments) = np.random.default_rng(seed), MACHINES[machine]
    rounds = _accepted(random, TOKENS)
    shares = np.array([0.55 + 0.45 * proposed / LOOKAHEAD for proposed, _ in rounds])  # shorter rounds cost less
    work = {"plain": np.full(TOKENS, step), "speculative": step * TOKENS / truth * shares / shares.sum()}

    def times(side: Side) -> list[float]:
        number = len(work[side])
        slow = np.repeat(random.normal(0, moments, number // MOMENT + 1), MOMENT)[:number]
        return [float(each) for each in work[side] * np.exp(slow + random.normal(0, steps, number))]

    def timed_rounds() -> list[tuple[int, int, float]]:
        took = times("speculative")
        return [(accepted + 1, proposed, each) for (proposed, accepted), each in zip(rounds, took, strict=True)]

    plain = [times("plain") for _ in range(repeats + 2)]
    data = {"plain": plain[0], "rounds": timed_rounds(), "load": load}
    between = [{"plain": pair, "rounds": timed_rounds(), "load": load} for pair in pairwise(plain[1:])]
    return comparison_of(data | {"repeats": between})


def comparison_of(data: dict[str, Any], second: float = 1.0) -> Comparison:
    """Return the race with these plain steps and rounds (tokens, proposals or -1, time), in units of a second."""
    template, tokens = quiet_comparison(), len(data["plain"])

    def run(rounds: Iterable[tuple[int, int, float]]) -> Run:
        steps = tuple(round_of(max(number, count - 1), count - 1, time * second) for count, number, time in rounds)
        return Run(prefill=template.plain.prefill, rounds=steps, finish_reason="length")

    def trial(repeat: dict[str, Any]) -> Trial:
        speculative = run(repeat["rounds"])
        return Trial(
            tokens=tokens,
            seconds=metrics.seconds_to(speculative, tokens),
            plain_seconds=sum(map(sum, repeat["plain"])) / len(repeat["plain"]) * second,
            identical=True,
            rounds=len(speculative.rounds),
            run_tokens=metrics.decoded_tokens(speculative),
            other_load=repeat["load"],
            plain_steps=tuple(tuple(time * second for time in steps) for steps in repeat["plain"]),
            round_steps=tuple((count, number, time * second) for count, number, time in repeat["rounds"]),
        )

    changed = {"plain": run([(1, 0, time) for time in data["plain"]]), "speculative": run(data["rounds"])}
    repeats = tuple(trial(repeat) for repeat in data["repeats"])
    return template.model_copy(update={**changed, "repeats": repeats, "other_load": data["load"]})


def _accepted(random: np.random.Generator, tokens: int) -> list[tuple[int, int]]:
    """Return the proposed and accepted tokens of the rounds that decode this many tokens."""
    rounds = []
    while tokens > 0:
        proposed, accepted = min(LOOKAHEAD, tokens - 1), 0
        while accepted < proposed and random.random() < ACCEPTANCE:
            accepted += 1
        rounds.append((proposed, accepted))
        tokens -= accepted + 1
    return rounds


def round_of(proposed: int, accepted: int, seconds: float) -> Round:
    return Round.model_construct(
        committed=(TOKEN,) * (accepted + 1),
        seconds=seconds,
        proposed=_proposals(proposed, accepted),
        draft_seconds=None,
        verify_seconds=None,
    )


@cache
def _proposals(proposed: int, accepted: int) -> tuple[DraftToken, ...]:
    return tuple(DraftToken(id=7, text=" a", outcome=each) for each in outcomes_from_counts(proposed, accepted))
