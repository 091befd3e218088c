"""Conclusions of a comparison, the runs they need, and warnings."""

import math
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdemo import metrics
from specdemo.engines.base import THOROUGH
from specdemo.engines.scripted import ScriptedEngine
from specdemo.estimate import Interval, of_comparison, summarise
from specdemo.measure.conditions import OtherLoad
from specdemo.measure.race import race
from specdemo.measure.trials import repeats
from specdemo.metrics import Loop, ceiling, loop
from specdemo.presentation.conclusion import Conclusion, conclude
from specdemo.presentation.warnings import causes, too_wide, warnings, warnings_of
from specdemo.presentation.wording import shared_words
from specdemo.records import NOT_USED, Comparison, Costs, Move, Trial, WarmUp
from specdemo.settings import GenerationSettings

LONG = {"ignore_eos": True, "max_new_tokens": 64}


def compare(engine: ScriptedEngine, **settings: Any) -> Comparison:
    *_, comparison = race(engine, "Say", GenerationSettings(**settings))
    assert isinstance(comparison, Comparison)
    return comparison.model_copy(update={"other_load": None})


def repeated(*speedups: float, **changes: Any) -> Comparison:
    """A comparison whose repeats had these speedups."""
    each = [
        Trial(
            tokens=8,
            seconds=1,
            plain_seconds=speedup,
            identical=True,
            rounds=2,
            run_tokens=8,
            run_seconds=1,
            **changes,
        )
        for speedup in speedups
    ]
    return compare(ScriptedEngine()).model_copy(update={"repeats": tuple(each)})


def kinds(comparison: Comparison) -> list[str]:
    return [warning.kind for warning in warnings(comparison)]


def test_repeats_agree_with_the_race_on_a_steady_clock() -> None:
    engine = ScriptedEngine(wrong=(4,))
    before = compare(engine)
    *_, last = repeats(engine, before, number=3)
    assert len(last.repeats) == 3
    assert [trial.speedup for trial in last.repeats] == pytest.approx([metrics.speedup(before)] * 3)
    assert all(trial.identical for trial in last.repeats)
    assert engine.requests == 0


def test_as_many_repeats_as_fit_into_the_time() -> None:
    engine = ScriptedEngine(thoroughness=THOROUGH)  # whose seconds do not really pass
    before = compare(engine)
    assert len(list(repeats(engine, before))) > 6
    slow = ScriptedEngine(step=2)
    assert list(repeats(slow, compare(slow))) == []  # a plain run takes 20 s


def test_what_was_stopped_is_not_repeated_and_repeats_can_be_stopped() -> None:
    engine = ScriptedEngine()
    before = compare(engine)
    cancelled = before.plain.model_copy(update={"finish_reason": "cancelled"})
    assert list(repeats(engine, before.model_copy(update={"plain": cancelled}), number=3)) == []
    assert list(repeats(engine, before, number=3, stop=lambda: True)) == []
    moved = before.model_copy(update={"moves": (Move(round=2, num_assistant_tokens=8),)})
    assert list(repeats(engine, moved, number=3)) == []
    assert engine.requests == 0


def estimated(*speedups: float, **changes: Any) -> Conclusion:
    """The conclusion from repeats of earlier versions, which have totals only; it quotes their median."""
    return conclude(repeated(*speedups, **changes))


@pytest.mark.parametrize(
    ("speedups", "headline", "tone"),
    [
        ([2.0, 2.1, 2.2] * 3, "2.10× faster", "faster"),
        ([0.5, 0.51, 0.52] * 3, "0.51×: slower", "slower"),
        ([0.97, 0.98, 1.01] * 3, "About even: 0.98×", "same"),
        ([1.001, 1.01, 1.02] * 3, "About even: 1.01×", "same"),  # the interval excludes 1, but who would notice
        ([0.8, 0.95, 1.3] * 3, "Too noisy to call", "same"),
        ([1.2, 1.3, 1.4, 3, 3.5, 4], "1.25 to 3.75× faster", "faster"),
        ([4.5, 4.5] * 3, "Too noisy to call", "same"),  # more than a round commits
    ],
)
def test_no_more_is_said_than_the_runs_allow(speedups: list[float], headline: str, tone: str) -> None:
    conclusion = estimated(*speedups)
    assert (conclusion.headline, conclusion.tone) == (headline, tone)
    assert conclusion.seconds is not None
    plain, speculative = conclusion.seconds
    assert plain / speculative == pytest.approx(median(speedups))
    assert (conclusion.difference is None) == (headline == "Too noisy to call")


def test_the_sentence_and_the_bars_follow_from_the_headline_s_number() -> None:
    comparison = compare(ScriptedEngine(wrong=(4,), step=0.1), **LONG)
    conclusion, speedup = conclude(comparison), of_comparison(comparison)
    assert speedup is not None
    assert speedup.plain_steps_per_round is not None
    assert conclusion.headline == f"{speedup.middle:.2f}× faster"
    assert conclusion.sentence == (
        f"Each round yields {speedup.tokens_per_round:.2f} tokens and takes as long as "
        f"{speedup.plain_steps_per_round:.2f} normal steps."
    )
    assert conclusion.seconds is not None
    plain, speculative = conclusion.seconds
    assert plain / speculative == pytest.approx(speedup.middle)
    assert conclusion.difference == f"{plain - speculative:.2f} s saved of {plain:.2f} s"
    assert f"{speedup}" in conclusion.why[0]
    slow = conclude(compare(ScriptedEngine(wrong=range(0, 99, 2), draft=0.05, step=0.1), **LONG))
    assert slow.sentence.startswith("Each round takes as long as")
    assert slow.difference is not None
    assert " lost on " in slow.difference


def test_a_figure_that_is_too_noisy_says_what_would_settle_it() -> None:
    noisy = estimated(*[0.8, 0.95, 1.3] * 3)
    assert noisy.sentence.startswith("Anything from 0.80× to 1.30× fits the measurements.")
    disturbed = estimated(*[0.8, 0.95, 1.3] * 3, other_load=0.91)
    assert disturbed.sentence.endswith("Close other programs and run again.")
    assert disturbed.chip == "disturbed: other programs used 91 % of the processor"
    assert disturbed.warning in disturbed.why


def test_what_a_perfect_draft_would_reach_stands_beside_the_speedup() -> None:
    comparison = compare(ScriptedEngine(), **LONG)
    assert conclude(comparison).ceiling is None
    costs = Costs(plain_step=1, draft_step=0.1, verify=(1, 1.1, 1.2, 4))
    assert conclude(comparison.model_copy(update={"costs": costs})).ceiling == "a perfect draft would reach 2.1×"
    assert ceiling(costs) == pytest.approx((3 / 1.4, 2))
    disturbed = Costs(plain_step=1, draft_step=0.5, verify=(1, 0.5))
    assert ceiling(disturbed) == pytest.approx((2 / 1.5, 1))  # no pass takes less time than one over a token
    noisy = repeated(*[0.8, 0.95, 1.3] * 3).model_copy(update={"costs": costs})
    assert conclude(noisy).ceiling is None
    assert conclude(comparison.model_copy(update={"costs": costs, "other_load": 0.9})).ceiling is None
    hopeless = comparison.model_copy(update={"costs": Costs(plain_step=1, draft_step=0.9, verify=(1, 2))})
    assert conclude(hopeless).ceiling == "no draft could pay here"


def test_a_speedup_that_the_rounds_cannot_explain_is_warned_of() -> None:
    length = metrics.mean_accepted_length(compare(ScriptedEngine()).speculative)
    assert length == 4
    assert kinds(repeated(*[4.3] * 6)) == []
    assert kinds(repeated(*[4.5] * 6)) == ["above τ"]
    trial = repeated(3.25).repeats[0].model_copy(update={"rounds": 8})  # one token a round
    (warning,) = warnings_of(summarise([trial]))
    assert warning.reason.startswith(
        "A speedup of 3.25× is more than τ = 1.00 allows: every target pass committed a single"
    )


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.7, 1.6, "The runs differ too much to name a speedup (0.70–1.60)"),
        (
            1.2,
            2.4,
            "Speculation is faster, but the runs differ too much to say by how much (1.20–2.40)",
        ),
        (1.2, 1.5, None),
    ],
)
def test_a_wide_interval_is_warned_of_in_size_not_in_direction(low: float, high: float, said: str | None) -> None:
    warning = too_wide(Interval(middle=(low * high) ** 0.5, low=low, high=high))
    assert warning == (said and f"{said}; measure again.".replace("(", "(95 % interval "))


def test_what_disturbs_a_measurement_is_named() -> None:
    comparison = compare(ScriptedEngine())
    assert kinds(comparison) == []
    assert kinds(comparison.model_copy(update={"other_load": 0.4})) == ["other load"]
    assert kinds(repeated(2.0, other_load=0.1)) == []
    assert kinds(repeated(2.0, other_load=0.3)) == ["other load"]
    costs = Costs(plain_step=1, draft_step=None, verify=(1.0, 0.98, 0.9, 1.2))
    (warning,) = warnings(comparison.model_copy(update={"costs": costs}))
    assert warning.reason.startswith("A pass over 3 tokens seemed to take 0.90 of one")
    unsteady = {"speculative": WarmUp(rounds=9, seconds=3, steady=False)}
    assert kinds(comparison.model_copy(update={"warm_up": unsteady})) == ["still warming up"]


def test_the_machine_s_other_load_is_a_share() -> None:
    assert OtherLoad(math.inf).share() is None  # a time too short to tell
    load = OtherLoad(0.01)
    while (share := load.share()) is None:  # the system counts in hundredths of a second
        pass
    assert 0 <= share <= 1


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ([*range(40)], None),
        ([*range(10), *[7] * 23], None),  # too few tokens
        ([*range(10), *[20] * 24], Loop(10, 1)),
        ([*range(10), *[20, 21, 22] * 8, 20], Loop(10, 3)),  # cut off in the middle
        ([*range(10), *[20] * 30, 99], None),  # it ended
        ([*[*range(12)] * 3], None),  # only three times
    ],
)
def test_loops(ids: list[int], found: Loop | None) -> None:
    assert loop(ids) == found


@given(st.lists(st.integers(0, 3), max_size=80))
def test_a_loop_is_what_it_says(ids: list[int]) -> None:
    found = loop(ids)
    if found is not None:
        assert ids[found.start :][: -found.period] == ids[found.start + found.period :]
        assert len(ids) - found.start >= max(24, 4 * found.period)


def test_enough_rounds_without_anything_accepted_are_doubted() -> None:
    wrong = compare(ScriptedEngine(wrong=range(99)), ignore_eos=True, max_new_tokens=20)
    (warning,) = causes(wrong)
    assert warning.reason.startswith("Not one proposal was accepted in 18 rounds")
    assert "another family" in warning.reason
    few = compare(ScriptedEngine(wrong=range(99)), ignore_eos=True, max_new_tokens=8, num_assistant_tokens=8)
    assert sum(len(step.proposed or ()) for step in few.speculative.rounds) > 18
    assert list(causes(few)) == []  # most of these proposals were never judged
    environment = wrong.environment.model_copy(update={"openvino_genai": NOT_USED})
    (warning,) = causes(wrong.model_copy(update={"environment": environment}))
    assert warning.reason.endswith("Check which draft the server was started with.")


def test_what_keeps_a_pair_from_any_gain_is_named() -> None:
    comparison = compare(ScriptedEngine())
    pair, environment = comparison.pair, comparison.environment
    fast, slow = (Costs(plain_step=1, draft_step=draft, verify=(1.0, 1.1, 1.2)) for draft in (0.1, 0.95))
    assert kinds(comparison.model_copy(update={"costs": fast})) == []
    assert kinds(comparison.model_copy(update={"costs": slow})) == ["slow draft"]
    lookup = comparison.settings.model_copy(update={"drafter": "lookup"})
    assert kinds(comparison.model_copy(update={"costs": slow, "settings": lookup})) == []
    for verify in ((1.0, 2.1, 3.3), (1, 1.95, 2.9, 3.9)):  # a free draft could gain at most 3 % with the latter
        arithmetic = Costs(plain_step=1, draft_step=0.06, verify=verify)
        (warning,) = causes(comparison.model_copy(update={"costs": arithmetic}))
        assert warning.kind == "no gain possible"
        assert f"takes {verify[-1]:.1f} times as long as a plain step" in warning.reason
    experts = pair.model_copy(update={"target": pair.target.model_copy(update={"architecture": "qwen3_moe"})})
    assert kinds(comparison.model_copy(update={"pair": experts})) == ["experts"]
    elsewhere = environment.model_copy(update={"draft_device": "GPU"})
    assert kinds(comparison.model_copy(update={"environment": elsewhere})) == ["draft device"]
    meant = pair.model_copy(update={"runtime": pair.runtime.model_copy(update={"draft_device": "GPU"})})
    assert kinds(comparison.model_copy(update={"environment": elsewhere, "pair": meant})) == []


def test_a_looping_output_is_warned_of() -> None:
    comparison = compare(ScriptedEngine(words=(" a", " raven")), ignore_eos=True, max_new_tokens=60)
    (warning,) = warnings(comparison)
    assert warning.reason.startswith("From token 1 on, the output repeats the same 2 tokens, 30 times in all.")


def test_a_run_without_anything_accepted_says_so_first() -> None:
    wrong = compare(ScriptedEngine(wrong=range(99)))
    assert conclude(wrong).sentence.startswith("Not one of the draft's proposals was accepted")
    nothing = [step.model_copy(update={"proposed": ()}) for step in wrong.speculative.rounds]
    silent = wrong.model_copy(update={"speculative": wrong.speculative.model_copy(update={"rounds": tuple(nothing)})})
    assert conclude(silent).sentence.startswith("The draft guessed nothing")
    lookup = silent.model_copy(update={"settings": GenerationSettings(drafter="lookup")})
    assert conclude(lookup).sentence.startswith("Prompt lookup found nothing to copy")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "lookahead 4, draft model, GenAI engine, greedy, at most 128 tokens"),
        (
            {"engine": "traced", "policy": "auto", "do_sample": True, "seed": 7, "kv_cache": "on"},
            "automatic lookahead, draft model, traced engine, sampling at temperature 0.8, top-p 1, top-k 50, seed "
            "7, at most 128 tokens",
        ),
        (
            {"drafter": "lookup", "num_assistant_tokens": 3, "repetition_penalty": 1.2},
            "lookahead 3, n-grams of up to 3, prompt lookup, GenAI engine, greedy, repetition penalty 1.2, at most "
            "128 tokens",
        ),
        (
            {"engine": "traced", "kv_cache": "off", "policy": "confidence"},
            "confidence threshold 0.4, draft model, traced engine, greedy, no KV cache, at most 128 tokens",
        ),
    ],
)
def test_settings_in_words(settings: dict[str, Any], words: str) -> None:
    found = GenerationSettings.checked(**settings)
    assert f"{found.strategy.words}, {shared_words(found)}" == words
