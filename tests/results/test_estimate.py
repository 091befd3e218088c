"""The speedup of the clocks, and the interval around it."""

import math
from collections import defaultdict
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from specdemo.racing.trials import repeats
from specdemo.records import Comparison, Round, Side, Trial
from specdemo.results import estimate, metrics
from specdemo.results.estimate import Speedup, of_comparison, of_trials
from tests.support.machines import MACHINES, TOKEN, ratio_of_seconds, simulated
from tests.support.proposals import compared
from tests.support.recorded import recorded_races
from tests.support.scripted import ScriptedEngine
from tests.support.step_costs import costs_of

LONG: dict[str, Any] = {"ignore_eos": True, "max_new_tokens": 101}


def estimated(comparison: Comparison) -> Speedup:
    found = of_comparison(comparison)
    assert found is not None
    return found


def half_width(speedup: Speedup) -> float:
    """Of the logarithm."""
    return math.log(speedup.high / speedup.low) / 2


@pytest.mark.parametrize("machine", MACHINES)
def test_it_is_the_ratio_of_all_seconds_on_the_clocks(machine: str) -> None:
    raced = simulated(machine, 1.4, seed=2, repeats=3)
    once = raced.model_copy(update={"repeats": ()})
    assert estimated(once).ratio == pytest.approx(ratio_of_seconds(once), rel=1e-12)
    tokens = metrics.common_tokens(raced)
    plain = metrics.seconds_to(raced.plain, tokens) + sum(trial.plain_seconds for trial in raced.repeats)
    speculative = metrics.seconds_to(raced.speculative, tokens) + sum(trial.seconds for trial in raced.repeats)
    assert estimated(raced).ratio == pytest.approx(plain / speculative, rel=1e-12)
    of_repeats = sum(t.plain_seconds for t in raced.repeats) / sum(t.seconds for t in raced.repeats)
    assert of_trials(raced.repeats).ratio == pytest.approx(of_repeats, rel=1e-12)
    for found in (estimated(raced), estimated(once)):
        assert found.low < found.ratio < found.high


def dearer(comparison: Comparison, every: int, factor: float) -> Comparison:
    """Make every n-th round of the speculative side cost more, in the race as in its repeats."""

    def longer(number: int) -> float:
        return factor if number % every == 0 else 1.0

    run = comparison.speculative
    rounds = tuple(
        step.model_copy(update={"seconds": step.seconds * longer(n)}) for n, step in enumerate(run.rounds, 1)
    )
    trials = []
    for trial in comparison.repeats:
        steps = tuple((*known, seconds * longer(n)) for n, (*known, seconds) in enumerate(trial.round_steps, 1))
        seconds = trial.seconds * sum(each[2] for each in steps) / sum(each[2] for each in trial.round_steps)
        trials.append(trial.model_copy(update={"round_steps": steps, "seconds": seconds}))
    changed = {"speculative": run.model_copy(update={"rounds": rounds}), "repeats": tuple(trials)}
    return comparison.model_copy(update=changed)


def test_rounds_that_are_dearer_each_time_count_with_all_their_seconds() -> None:
    """Medians would call this race faster: every eighth round takes 70 % longer, and the seconds say 0.98×."""
    raced = dearer(simulated("quiet", 0.98 * (7 + 1.7) / 8, seed=1, repeats=6), 8, 1.7)
    found = estimated(raced)
    assert found.ratio < 1
    assert (found.state, found.direction) in {("close", "same"), ("clear", "slower")}


def test_repeats_narrow_the_interval_up_to_what_differs_between_processes() -> None:
    widths, helps = [], []
    for number in (0, 6, 50):
        found = estimated(simulated("busy", 1.4, seed=3, repeats=number))
        widths.append(half_width(found))
        helps.append(found.width_from)
    assert widths == sorted(widths, reverse=True)
    assert widths[1] < 0.7 * widths[0]
    assert (helps[0], helps[-1]) == ("runs", "processes")


def totals(number: int, concurrency: int = 1, ratio: float = 1.25, noise: float = 0.02) -> list[Trial]:
    """Blocks of several requests: identical data, but for a throughput that grows with concurrency."""
    random = np.random.default_rng(5)
    return [
        Trial(
            tokens=640,
            seconds=8 / ratio / concurrency * math.exp(random.normal(0, noise)),
            plain_seconds=8 / concurrency,
            identical=True,
            rounds=None,
            run_tokens=640,
            other_load=0.01,
        )
        for _ in range(number)
    ]


def test_blocks_of_several_requests_have_intervals_that_do_not_grow_with_concurrency() -> None:
    alone, together = (of_trials(totals(6, concurrency)) for concurrency in (1, 32))
    assert together.ratio == pytest.approx(alone.ratio)
    assert half_width(together) == pytest.approx(half_width(alone))
    assert alone.state == "clear"
    assert alone.tokens_per_round is None
    assert half_width(of_trials(totals(24))) < half_width(alone) < half_width(of_trials(totals(3)))


def test_the_best_of_ten_equal_settings_is_rarely_called_faster() -> None:
    random, called = np.random.default_rng(0), 0
    for _ in range(200):
        found = []
        for _ in range(10):
            prompts = [1 + random.normal(0, 0.08, 2) for _ in range(8)]  # seconds of either side
            trials = [
                Trial(tokens=64, seconds=s, plain_seconds=p, identical=True, rounds=40, run_tokens=64)
                for p, s in prompts
            ]
            found.append(of_trials(trials, range(8), tried=10))
        called += max(found, key=lambda each: each.ratio).direction != "same"
    assert called <= 10  # of 200; without the correction more than 40
    alone, of_ten = (of_trials(totals(8), tried=tried) for tried in (1, 10))
    assert half_width(of_ten) > 1.4 * half_width(alone)
    assert of_ten.ratio == alone.ratio


def test_a_quiet_machine_gives_narrow_intervals_and_calls_what_is_clear() -> None:
    for truth, called in ((0.7, "slower"), (1.5, "faster"), (1.8, "faster")):
        found = estimated(simulated("quiet", truth, seed=4, repeats=6))
        assert (found.state, found.direction) == ("clear", called)
        assert half_width(found) < 0.15
    near = estimated(simulated("quiet", 1.01, seed=4, repeats=6))
    assert (near.state, near.direction) == ("close", "same")
    busy = near.model_copy(update={"other_load": 0.5})
    assert busy.state == "disturbed"


def test_half_widths_use_students_quantile() -> None:
    """By the expansion: 2.769, 2.262 and 2.045 (tables: 2.776, 2.262, 2.045)."""
    z = NormalDist().inv_cdf(0.975)
    for number, quantile in ((5, 2.76937), (10, 2.26190), (30, 2.04523)):
        values = np.arange(number, dtype=float)
        expected = quantile * values.std(ddof=1) / math.sqrt(number)
        assert estimate._half_width(values, z) == pytest.approx(expected, rel=1e-5)
    assert of_comparison(compared(ScriptedEngine(words=(" a",)))) is None, "a single token"


def test_many_prompts_count_as_a_sample() -> None:
    of_prompts = [simulated("quiet", truth, seed=n, repeats=1) for n, truth in enumerate((1.1, 1.9) * 4)]
    done = [each.repeats[0] for each in of_prompts]
    fixed, sampled = of_trials(done), of_trials(done, prompts=range(len(done)))
    assert fixed.ratio == sampled.ratio
    assert half_width(sampled) > 1.5 * half_width(fixed)


@pytest.mark.parametrize("sides", [("plain", "speculative"), ("speculative",)])
def test_chunks_that_are_no_passes_are_timed_by_their_tokens(sides: tuple[Side, ...]) -> None:
    raced = compared(ScriptedEngine(), **LONG)
    changed: dict[str, Any] = {side: raced.side(side).model_copy(update={"passes_known": False}) for side in sides}
    sizes = [1, 4, 2, 1, 3] * 6  # of chunks that take as long as their tokens
    chunks = [Round(committed=[TOKEN] * n, seconds=0.01 * n, proposed=None) for n in sizes]
    changed["speculative"] = changed["speculative"].model_copy(update={"rounds": tuple(chunks)})
    found = estimated(raced.model_copy(update=changed))
    assert found.tokens_per_round is None
    assert half_width(found) == pytest.approx(half_width(estimated(raced)), abs=0.01)


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


def test_rounds_of_many_kinds_do_not_hide_their_noise() -> None:
    """Each kind has a mean of its own, which takes up a degree of freedom."""
    widths = []
    for kinds in (1, 20, 40):
        random = np.random.default_rng(1)
        seconds = [float(each) for each in 0.02 * np.exp(random.normal(0, 0.3, 40))]
        steps = [(1, number % kinds, each) for number, each in enumerate(seconds)]
        values = {"tokens": 40, "seconds": sum(seconds), "plain_seconds": 0.8, "identical": True, "rounds": 40}
        plain = [[0.02] * 40] * 2
        widths.append(half_width(of_trials([Trial(**values, run_tokens=40, plain_steps=plain, round_steps=steps)])))
    assert widths[1] > 1.25 * widths[0]
    assert widths[2] > 5 * widths[0]


def test_the_parts_of_a_round_make_up_the_speedup() -> None:
    *_, repeated = repeats(engine := ScriptedEngine(wrong=(4, 11)), compared(engine, **LONG), number=2)
    for comparison in (repeated, compared(ScriptedEngine(), num_assistant_tokens=2, **LONG)):
        found = estimated(comparison)
        parts = metrics.round_costs(comparison, found.plain_steps_per_round)
        assert parts is not None
        assert parts.source == "in this run"
        assert parts.draft_step == pytest.approx(engine.draft / engine.step, rel=0.02)
        assert (found.tokens_per_round or 0) / sum(filter(None, parts[1:3])) == pytest.approx(found.ratio)
    untimed = [step.model_copy(update={"draft_seconds": None}) for step in comparison.speculative.rounds]
    run = comparison.speculative.model_copy(update={"rounds": tuple(untimed)})
    apart = comparison.model_copy(update={"speculative": run, "costs": costs_of((0.01, 0.012, 0.014), 0.002)})
    beside = metrics.round_costs(apart, found.plain_steps_per_round)
    assert beside is not None
    assert [beside.draft_step, beside.verify] == pytest.approx([0.2, 1.4])
    assert beside.source == "measured separately"


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
