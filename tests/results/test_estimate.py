"""The estimate of the speedup on simulated machines with a known true speedup."""

import math
from collections import Counter
from functools import cache

import numpy as np
import pytest

from specdemo.racing.race import race
from specdemo.racing.trials import repeats
from specdemo.records import Comparison, Trial
from specdemo.results import estimate, metrics
from specdemo.results.estimate import Interval, Speedup, of_comparison, of_trials
from specdemo.settings import GenerationSettings
from tests.support.machines import MACHINES, ratio_of_seconds, simulated
from tests.support.scripted import ScriptedEngine
from tests.support.step_costs import costs_of

TRUTHS = (0.7, 0.97, 1.03, 1.5, 1.8)
RACES = 15  # of each kind, for each machine
# seconds of a plain step, and repeats, of the story pair and SmolLM2
STEPS = {"short steps": (0.0015, 5), "long steps": (0.010, 2)}
# half-widths on a quiet machine: little more than the spread between states of a process
QUIET = {"short steps": 0.27, "long steps": 0.10}


def with_costs(comparison: Comparison, truth: float, step: float, error: float) -> Comparison:
    """Add step costs from another moment, which predict the true speedup up to this error."""
    rounds = comparison.speculative.rounds
    longest = max(len(each.proposed or ()) for each in rounds)
    draft = 0.05
    total = metrics.decoded_tokens(comparison.speculative) / truth / len(rounds) * math.exp(error)
    verify = [1.0, *[max(total - draft * longest, 1.0)] * longest]  # all rounds cost as much as the longest
    checks = (0.08, -0.08) * 3  # the usual size of `error`
    costs = costs_of([step * each for each in verify], draft * step, checks=checks)
    return comparison.model_copy(update={"costs": costs})


@cache
def estimates_of(machine: str, steps: str, *, prior: bool) -> list[tuple[float, Speedup]]:
    """Return true and estimated speedups, with repeats or from the race alone and step costs."""
    step, number = STEPS[steps]
    random, found = np.random.default_rng(0), []
    for seed in range(RACES):
        truth = TRUTHS[seed % len(TRUTHS)]
        comparison = simulated(MACHINES[machine], truth, seed=seed, step=step, repeats=0 if prior else number)
        if prior:
            comparison = with_costs(comparison, truth, step, random.normal(0, 0.08))
        found.append((truth, estimated(comparison)))
    return found


def estimated(comparison: Comparison) -> Speedup:
    found = of_comparison(comparison)
    assert found is not None
    return found


def half_width(interval: Interval) -> float:
    return float(np.sqrt(interval.high / interval.low) - 1)


@pytest.mark.parametrize("prior", [False, True])
@pytest.mark.parametrize("steps", STEPS)
def test_nine_of_ten_intervals_hold_the_truth_and_the_wrong_side_is_rarely_named(steps: str, prior: bool) -> None:
    said, wrong, held = Counter[str](), Counter[str](), Counter[str]()
    far = 0
    for machine in MACHINES:
        found = estimates_of(machine, steps, prior=prior)
        held[machine] = sum(speedup.low <= truth <= speedup.high for truth, speedup in found)
        for truth, speedup in found:
            said[speedup.strength] += 1
            unclear = speedup.strength == "uncertain" and abs(truth - 1) < estimate.LITTLE  # no side is wrong there
            wrong[speedup.strength] += not unclear and (speedup.middle > 1) != (truth > 1)
            said["unclear"] += unclear
            far += speedup.strength == "even" and not 1 / estimate.EVEN < truth < estimate.EVEN
    assert held.total() >= 0.9 * RACES * len(MACHINES)
    assert min(held.values()) >= 0.8 * RACES, held
    assert wrong["clear"] <= 0.02 * said["clear"]
    assert wrong["probable"] <= 0.1 * said["probable"] + 1
    assert wrong["uncertain"] <= 0.4 * (said["uncertain"] - said["unclear"])
    assert far <= 0.05 * said["even"]
    if prior:  # counts and step costs make up for a noisy clock
        assert said["uncertain"] < 0.4 * RACES * len(MACHINES)


@pytest.mark.parametrize("steps", STEPS)
def test_a_quiet_machine_gives_narrow_intervals_and_calls_what_is_clear(steps: str) -> None:
    found = estimates_of("quiet", steps, prior=False)
    assert np.median([half_width(speedup) for _, speedup in found]) <= QUIET[steps]
    clear = {0.7: ("clear", "slower"), 1.5: ("clear", "faster"), 1.8: ("clear", "faster")}
    assert all((each.strength, each.direction) == clear[truth] for truth, each in found if truth in clear)


def compared(engine: ScriptedEngine, **settings: object) -> Comparison:
    *_, comparison = race(engine, "Say", GenerationSettings.checked(**settings))
    assert isinstance(comparison, Comparison)
    return comparison.model_copy(update={"other_load": None})


LONG = {"ignore_eos": True, "max_new_tokens": 101}


def test_on_a_steady_clock_it_is_the_ratio_of_seconds() -> None:
    engine = ScriptedEngine(wrong=(4, 11, 12, 30))
    once = compared(engine, **LONG)
    *_, more = repeats(engine, once, number=3)
    for comparison in (once, more):
        found = estimated(comparison)
        assert found.middle == found.measured == pytest.approx(ratio_of_seconds(comparison))
        assert found.tokens_per_round == pytest.approx(metrics.mean_acceptance_length(comparison.speculative))
        assert found.plain_steps_per_round == pytest.approx((found.tokens_per_round or 0) / found.middle)
    assert of_trials(more.repeats).middle == pytest.approx(ratio_of_seconds(once), rel=1e-3)  # of whole microseconds


def test_the_printed_formula_is_what_is_computed() -> None:
    comparison = simulated(MACHINES["bursts, half"], 1.5, seed=4, repeats=0)
    found = estimated(comparison)
    rounds = comparison.speculative.rounds
    sides = [[step.seconds for step in comparison.plain.rounds], [step.seconds for step in rounds]]
    kinds = [[0] * len(sides[0]), [len(step.proposed or ()) for step in rounds]]
    means = []
    for seconds, kind in zip(sides, kinds, strict=True):
        usual = {k: np.median([s for s, each in zip(seconds, kind, strict=True) if each == k]) for k in set(kind)}
        factors = [s / usual[each] for s, each in zip(seconds, kind, strict=True)]
        parts = np.array_split(factors, max(int(min(max(sum(seconds) / 0.25, 4), len(seconds) / 4)), 1))
        medians = [np.median(part) for part in parts]
        means.append(np.mean([usual[each] for each in kind]) * np.exp(np.mean(np.log(medians))))
    tokens = sum(len(step.committed) for step in rounds) / len(rounds)
    assert found.middle == pytest.approx(tokens * means[0] / means[1])


def test_step_costs_count_only_where_other_programs_disturbed_the_race() -> None:
    quiet, noisy = (simulated(MACHINES[name], 1.5, seed=9, repeats=0) for name in ("quiet", "bursts, most of it"))
    alone, both = map(estimated, (quiet, with_costs(quiet, 1.7, 0.01, 0)))
    assert (alone.middle, both.counts_expected) == (both.middle, False)
    alone, both = map(estimated, (noisy, with_costs(noisy, 1.7, 0.01, 0)))
    assert both.measured == alone.middle
    assert both.expected == pytest.approx(1.7, rel=0.02)
    assert both.expected is not None
    weight = math.log(both.middle / alone.middle) / math.log(both.expected / alone.middle)
    assert 0.6 <= weight <= 1
    assert half_width(both) < half_width(alone)


def test_estimates_that_contradict_each_other_widen_the_interval() -> None:
    busy = simulated(MACHINES["quiet"], 1.2, seed=2).model_copy(update={"other_load": 0.3})
    near, far = (estimated(with_costs(busy, 1.2 * factor, 0.01, 0)) for factor in (1.05, 2.4))
    assert half_width(far) > 1.4 * half_width(near)


def test_the_parts_of_a_round_make_up_the_speedup() -> None:
    *_, repeated = repeats(engine := ScriptedEngine(wrong=(4, 11)), compared(engine, **LONG), number=2)
    for comparison in (repeated, compared(ScriptedEngine(), num_assistant_tokens=2, **LONG)):
        found = estimated(comparison)
        parts = estimate.round_costs(comparison, found)
        assert parts is not None
        assert parts.source == "in this run"
        assert parts.draft_step == pytest.approx(engine.draft / engine.step, rel=0.02)
        assert (found.tokens_per_round or 0) / sum(filter(None, parts[1:3])) == pytest.approx(found.middle)
    untimed = [step.model_copy(update={"draft_seconds": None}) for step in comparison.speculative.rounds]
    run = comparison.speculative.model_copy(update={"rounds": tuple(untimed)})
    apart = comparison.model_copy(update={"speculative": run, "costs": costs_of((0.01, 0.012, 0.014), 0.002)})
    beside = estimate.round_costs(apart, found)
    assert beside is not None
    assert [beside.draft_step, beside.verify] == pytest.approx([0.2, 1.4])
    assert beside.source == "measured separately"


def test_step_costs_that_do_not_apply_are_not_used() -> None:
    costs = costs_of((0.01, 0.011, 0.012, 0.012, 0.013), 0.002)
    comparison = compared(ScriptedEngine(), **LONG)
    assert estimate.expected_speedup(comparison, costs) is not None
    assert estimate.expected_speedup(comparison, costs_of(costs.verify[:2], 0.002)) is None  # no longer ones
    without = comparison.settings.model_copy(update={"kv_cache": "off"})
    assert estimate.expected_speedup(comparison.model_copy(update={"settings": without}), costs) is None


def test_impossible_times_are_left_out() -> None:
    impossible = simulated(MACHINES["quiet"], 5, seed=0).model_copy(update={"other_load": 0.5})
    alone, both = map(estimated, (impossible, with_costs(impossible, 1.5, 0.01, 0)))
    assert (alone.measured, alone.strength) == (None, "noisy")
    assert str(alone) == f"at most {estimate.ABOVE * (alone.tokens_per_round or 0):.2f}×"
    assert both.measured is None
    assert both.middle == pytest.approx(both.expected)
    assert both.strength == "clear"


def test_a_side_with_a_handful_of_rounds_is_uncertain_by_itself() -> None:
    found = estimated(compared(ScriptedEngine(), ignore_eos=True, max_new_tokens=12))
    assert found.strength != "clear"
    assert of_comparison(compared(ScriptedEngine(words=(" a",)))) is None


def test_many_prompts_count_as_a_sample() -> None:
    of_prompts = [simulated(MACHINES["quiet"], truth, seed=n, repeats=1) for n, truth in enumerate((1.1, 1.9) * 4)]
    done = [each.repeats[0] for each in of_prompts]
    fixed, sampled = of_trials(done), of_trials(done, prompts=range(len(done)))
    assert fixed.middle == pytest.approx(sampled.middle, rel=0.03)
    assert half_width(sampled) > 1.5 * half_width(fixed)


def test_totals_count_as_single_steps() -> None:
    values = {"tokens": 8, "seconds": 1, "identical": True, "rounds": None, "run_tokens": 8}
    totals = [Trial.model_validate({**values, "plain_seconds": each}) for each in (2.0, 2.1, 2.2)]
    few, many = of_trials(totals), of_trials(totals * 4)
    for found in (few, many):
        assert found.middle == pytest.approx(2.1, rel=0.01)
        assert found.tokens_per_round is None
    assert (few.strength, many.call) == ("probable", "faster")
