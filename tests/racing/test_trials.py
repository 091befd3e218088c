import pytest

from specdemo.errors import EngineError
from specdemo.racing.trials import refined, trials
from specdemo.records import Request
from specdemo.results.estimate import of_comparison
from specdemo.settings import GenerationSettings
from specdemo.strategies import Plain
from tests.support.failing import failing_engine
from tests.support.machines import ratio_of_seconds
from tests.support.proposals import raced
from tests.support.scripted import ScriptedEngine

LONG = GenerationSettings(ignore_eos=True, max_new_tokens=41)


def test_a_trial_keeps_every_step_of_both_sides() -> None:
    (trial,) = trials(ScriptedEngine(), "Say", [LONG], None)
    assert trial is not None
    assert [len(steps) for steps in trial.plain_steps] == [40, 40]
    assert all(seconds == pytest.approx(0.01) for steps in trial.plain_steps for seconds in steps)
    assert sum(tokens for tokens, _, _ in trial.round_steps) == trial.run_tokens
    assert {proposed for _, proposed, _ in trial.round_steps[:-1]} == {4}
    assert all(seconds > 0 for _, _, seconds in trial.round_steps)


def test_a_trial_is_compared_with_the_plain_runs_on_both_sides() -> None:
    def slows(engine: ScriptedEngine, request: Request) -> None:
        engine.step += 0.01  # with every run

    (trial,) = trials(ScriptedEngine(step=0, on_request=slows), "Say", [LONG], None)
    assert trial is not None
    assert trial.plain_seconds == pytest.approx(40 * (0.01 + 0.03) / 2)


def test_plain_runs_are_shared_unless_they_sample_differently() -> None:
    requests = list[Request]()
    engine = ScriptedEngine(on_request=lambda _, request: requests.append(request))
    sampled = LONG.model_copy(update={"do_sample": True})
    longer = LONG.model_copy(update={"num_assistant_tokens": 6})
    assert len(list(trials(engine, "Say", [LONG, longer, sampled], None))) == 3
    plain = [request for request in requests if isinstance(request.strategy, Plain)]
    assert [request.sampling.do_sample for request in plain] == [False, False, False, True, True]


def test_a_servers_burst_counts_as_its_tokens() -> None:
    """Plain rounds of two tokens each cause no speedup."""
    single = raced(ScriptedEngine(), "Say", LONG)
    rounds = single.plain.rounds
    bursts = tuple(
        one.model_copy(update={"committed": one.committed + two.committed, "seconds": one.seconds + two.seconds})
        for one, two in zip(rounds[::2], rounds[1::2], strict=True)
    )
    burst = single.model_copy(update={"plain": single.plain.model_copy(update={"rounds": bursts})})
    speedups = [found.ratio for each in (single, burst) if (found := of_comparison(each)) is not None]
    assert speedups == [pytest.approx(ratio_of_seconds(single))] * 2


def test_a_failure_ends_the_repeats_and_keeps_the_race() -> None:
    comparison = raced(ScriptedEngine(), "Say", LONG)
    assert [len(each.repeats) for each in refined(failing_engine(EngineError, 5), comparison, number=3)] == [1]
