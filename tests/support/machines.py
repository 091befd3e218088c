"""Simulated races with a chosen true speedup, on quiet and busy machines."""

from functools import cache
from itertools import pairwise

import numpy as np

from specdemo.records import Comparison, DraftToken, Round, Run, Side, Token, Trial, outcomes_from_counts
from specdemo.results import metrics
from tests.support.proposals import compared
from tests.support.scripted import ScriptedEngine


def ratio_of_seconds(comparison: Comparison) -> float:
    """Return plain / speculative seconds for the same number of new tokens."""
    tokens = metrics.common_tokens(comparison)
    return metrics.seconds_to(comparison.plain, tokens) / metrics.seconds_to(comparison.speculative, tokens)


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

    def run(kinds: list[tuple[int, int]], seconds: list[float]) -> Run:
        done = tuple(round_of(*kind, took) for kind, took in zip(kinds, seconds, strict=True))
        return Run(prefill=quiet_comparison().plain.prefill, rounds=done, finish_reason="length")

    def trial(before: list[float], after: list[float]) -> Trial:
        took = times("speculative")
        return Trial(
            tokens=TOKENS,
            seconds=sum(took),
            plain_seconds=(sum(before) + sum(after)) / 2,
            identical=True,
            rounds=len(took),
            run_tokens=TOKENS,
            other_load=load,
            plain_steps=(tuple(before), tuple(after)),
            round_steps=tuple(
                (accepted + 1, proposed, each) for (proposed, accepted), each in zip(rounds, took, strict=True)
            ),
        )

    plain = [times("plain") for _ in range(repeats + 2)]
    changed = {
        "plain": run([(0, 0)] * TOKENS, plain[0]),
        "speculative": run(rounds, times("speculative")),
        "repeats": tuple(trial(*pair) for pair in pairwise(plain[1:])),
        "other_load": load,
    }
    return quiet_comparison().model_copy(update=changed)


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
