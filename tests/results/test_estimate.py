"""The speedup of the clocks, and the interval around it."""

import math
from collections import defaultdict
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from specdemo.records import Comparison, Round, Side, Trial
from specdemo.results import estimate
from specdemo.results.estimate import Speedup, of_comparison, of_trials
from tests.support.machines import TOKEN, simulated
from tests.support.proposals import compared
from tests.support.recorded import recorded_races
from tests.support.scripted import ScriptedEngine

LONG: dict[str, Any] = {"ignore_eos": True, "max_new_tokens": 101}


def estimated(comparison: Comparison) -> Speedup:
    found = of_comparison(comparison)
    assert found is not None
    return found


def half_width(speedup: Speedup) -> float:
    """Of the logarithm."""
    return math.log(speedup.high / speedup.low) / 2


def test_a_race_is_pooled_with_its_repeats() -> None:
    """100 plain steps of 0.01 s, and 20 rounds of 0.022 s, which a server's hidden tokens make longer."""
    raced = compared(ScriptedEngine(), **LONG)
    values: dict[str, Any] = {"tokens": 30, "run_tokens": 30, "rounds": 10, "identical": True, "other_load": 0.3}
    run = raced.speculative.model_copy(update={"hidden_tokens": 5})
    trial = Trial(seconds=1, plain_seconds=3, **values)
    found = estimated(raced.model_copy(update={"repeats": (trial,), "speculative": run, "other_load": 0.1}))
    assert (found.ratio, found.other_load, found.tokens_per_round) == pytest.approx((4 / 1.44, 0.2, 135 / 30))


def test_half_widths_use_students_quantile() -> None:
    """By the expansion: 2.769, 2.262 and 2.045 (tables: 2.776, 2.262, 2.045)."""
    z = NormalDist().inv_cdf(0.975)
    for number, quantile in ((5, 2.76937), (10, 2.26190), (30, 2.04523)):
        values = np.arange(number, dtype=float)
        expected = quantile * values.std(ddof=1) / math.sqrt(number)
        assert estimate._half_width(values, z) == pytest.approx(expected, rel=1e-5)
    assert estimate._half_width(np.arange(4.0), z) == pytest.approx(z * 0.6), "a factor of 3 either way"
    assert of_comparison(compared(ScriptedEngine(words=(" a",)))) is None, "a single token"


def rising(most: int, each: int) -> list[int]:
    return [1 + n // each for n in range(most * each)]


@pytest.mark.parametrize(
    ("plain", "rounds", "clocks", "number", "freedom", "paces"),
    [
        # five parts of two steps; the mean takes up one of ten degrees of freedom
        ([0.01] * 10, [(1, each) for each in rising(5, 2)], (0.1, 0.3), 1, 10 / 9, [1 / 3, 2 / 3, 1, 4 / 3, 5 / 3]),
        # two kinds, of which one takes twice as long
        ([1.0] * 10, [(1 + n % 2, (1 + n % 2) * (1 + n // 2)) for n in range(10)], (1, 1), 1, 10 / 8,
         [1 / 3, 2 / 3, 1, 4 / 3, 5 / 3]),
        # the same drift on both sides cancels out
        (rising(5, 2), [(1, each) for each in rising(5, 2)], (1, 1), 1, 10 / 9, [1] * 5),
        # two seconds have eight parts of 0.25 s
        ([1.0] * 24, [(1, each) for each in rising(8, 3)], (3, 2), 1, 24 / 23, [n / 4.5 for n in range(1, 9)]),
        # two trials have three parts each
        ([1.0] * 6, [(1, each) for each in rising(3, 2)], (1, 1), 2, 12 / 11, [0.5, 1, 1.5] * 2),
        # too few rounds of a kind, just enough of them, and too few steps for five parts of two
        ([1.0] * 11, [(n // 2, 1) for n in range(11)], (1, 1), 1, 1, []),
        ([1.0] * 10, [(n // 2, 1) for n in range(10)], (1, 1), 1, 2, [1] * 5),
        ([1.0] * 9, [(1, 1)] * 9, (1, 1), 1, 1, []),
        # no steps, but both sides' seconds
        ([], [], (2, 1), 1, 1, []),
        # a plain step of a microsecond: the limit of an interval
        ([1e-6] * 10, [(1, 1)] * 10, (1, 1), 1, 1, [1] * 5),
    ],
)  # fmt: skip
def test_an_interval_by_hand(
    plain: list[float], rounds: list[tuple[int, float]], clocks: tuple[float, float], number: int, freedom: float,
    paces: list[float],
) -> None:  # fmt: skip
    """`paces` of parts of the speculative side: their seconds over the mean of such parts."""
    trial = Trial(
        tokens=len(rounds) or 40, plain_seconds=clocks[0], seconds=clocks[1], identical=True, rounds=20,
        run_tokens=50, plain_steps=[plain, plain] if plain else (), round_steps=[(1, *each) for each in rounds],
    )  # fmt: skip
    found, z = of_trials([trial] * number), NormalDist().inv_cdf(0.975)
    runs = estimate._half_width(-math.sqrt(freedom) * np.log(paces), z)
    processes = z * (0.05 + 0.12e-3 * len(plain) / sum(plain)) if plain else z * 0.05
    width = min(math.hypot(runs, processes), z * 3.5)
    ratio = clocks[0] / clocks[1]
    assert (found.ratio, found.tokens_per_round) == (ratio, 2.5)
    assert (found.low, found.high) == pytest.approx((ratio * math.exp(-width), ratio * math.exp(width)))
    assert found.width_from == ("runs" if runs > processes else "processes")


def test_six_prompts_are_a_sample() -> None:
    """Of shares of the plain seconds, less those of the speculative ones; the best of ten needs wider intervals."""
    values: dict[str, Any] = {"tokens": 2, "identical": True, "rounds": 1, "run_tokens": 2}
    trials = [Trial(seconds=1, plain_seconds=n, other_load=n / 10, **values) for n in (1, 2, 3, 4, 5, 6)]
    shares, z = np.array([6 * (n / 21 - 1 / 6) for n in (1, 2, 3, 4, 5, 6)]), NormalDist().inv_cdf(0.975)
    found = of_trials(trials, range(6))
    assert half_width(found) == pytest.approx(math.hypot(estimate._half_width(shares, z), z * 0.05))
    assert (found.ratio, found.other_load, found.tokens_per_round) == pytest.approx((3.5, 0.35, 2))
    of_ten, z = of_trials(trials, range(6), tried=10), NormalDist().inv_cdf(1 - 0.05 / 20)
    assert of_ten.high == pytest.approx(3.5 * math.exp(math.hypot(estimate._half_width(shares, z), z * 0.05)))
    fixed, z = of_trials(trials, [0, 1, 2, 3, 4, 4]), NormalDist().inv_cdf(0.975)
    assert half_width(fixed) == pytest.approx(z * math.hypot(0.6, 0.05)), "five are not"


@pytest.mark.parametrize("sides", [("plain", "speculative"), ("speculative",)])
def test_chunks_that_are_no_passes_are_timed_by_their_tokens(sides: tuple[Side, ...]) -> None:
    raced = compared(ScriptedEngine(), **LONG)
    changed: dict[str, Any] = {side: raced.side(side).model_copy(update={"passes_known": False}) for side in sides}
    sizes = [1, 4, 2, 1, 3] * 6  # of chunks that take as long as their tokens
    chunks = [Round(committed=[TOKEN] * n, seconds=0.01 * n, proposed=None) for n in sizes]
    changed["speculative"] = changed["speculative"].model_copy(update={"rounds": tuple(chunks)})
    found = estimated(raced.model_copy(update=changed))
    assert found.tokens_per_round is None
    assert half_width(found) == pytest.approx(NormalDist().inv_cdf(0.975) * (0.05 + 0.12e-3 * 100))


def test_records_from_files_that_no_engine_writes_have_an_interval() -> None:
    raced = simulated("quiet", 1.4, seed=0, repeats=2)
    few = raced.plain.model_copy(update={"rounds": raced.plain.rounds[:1]})
    (one, other), values = raced.repeats, raced.repeats[0].model_dump()
    unusual: list[list[list[float]]] = [[], [[], []], [[0.1], [0.1]]]
    trials = [Trial(**values | {"plain_steps": steps}) for steps in unusual]
    odd = [*trials, Trial(**values | {"rounds": 0}), Trial(**values | {"round_steps": [(0, 0, 0.1)]})]
    for comparison in (
        raced.model_copy(update={"plain": few}),
        raced.model_copy(update={"repeats": (one, *odd, other)}),
    ):
        found = estimated(comparison)
        assert 0 < found.low < found.ratio < found.high < math.inf
    assert of_trials(odd, range(len(odd))).low > 0


def test_intervals_hold_as_often_as_they_say() -> None:
    """Of real races beside other programs; each one's truth is the ratio of quiet races in other processes."""
    held, wrong = defaultdict[str, list[bool]](list), list[bool]()
    for recorded in recorded_races():
        found = estimated(recorded.comparison)
        for group in ("all", recorded.beside, recorded.pair):
            held[group].append(found.low <= recorded.truth <= found.high)
        if found.state == "clear":
            wrong.append((found.ratio > 1) != (recorded.truth > 1))
    coverage = {group: np.mean(each) for group, each in held.items()}
    assert all(share == pytest.approx(estimate.LEVEL, abs=0.04) for share in coverage.values()), coverage
    assert sum(wrong) <= 0.02 * len(wrong)
