from typing import Any

import pytest

from specdemo.errors import SettingsError
from specdemo.experiments.plan import MAX_VARIANTS, PRESETS, Axes, Plan, available, grid
from specdemo.experiments.prompts import Task
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings
from tests.support.scripted import ScriptedEngine

PAIR = ScriptedEngine().pair
SETTINGS = GenerationSettings(engine="traced", ignore_eos=True, max_new_tokens=61)
GENAI = SETTINGS.model_copy(update={"engine": "genai"})
TASKS = [Task(name=f"{task} {n}", task=task, prompt=f"Say {n}") for task in ("tales", "songs") for n in (1, 2)]
HEAD = PAIR.model_copy(update={"draft": PAIR.target.model_copy(update={"head": "eagle3"})})


def names(settings: GenerationSettings = SETTINGS, pair: ModelPair = PAIR, **axes: Any) -> list[str]:
    return list(grid(pair, settings, Axes.checked(**axes)))


def test_strategies_and_their_numbers_share_an_axis_and_others_are_combined_with_it() -> None:
    one = names(lookaheads=[1, 4], thresholds=[0.3], strategies=["same"])
    assert one == ["lookahead 1", "lookahead 4", "threshold 0.3", "policy auto"]
    both = names(lookaheads=[1, 4], temperatures=[0, 0.8])
    assert both == [f"lookahead {n}, temperature {t}" for n in (1, 4) for t in ("0", "0.8")]
    assert names() == [SETTINGS.strategy.description]


def test_variants_have_the_settings_that_they_name() -> None:
    found = grid(PAIR, SETTINGS, Axes(lookaheads=(3,), temperatures=(0.5,)))
    (variant,) = found.values()
    assert (variant.settings.num_assistant_tokens, variant.settings.temperature) == (3, 0.5)
    assert variant.settings.do_sample
    (cold,) = grid(PAIR, SETTINGS.model_copy(update={"do_sample": True}), Axes(temperatures=(0,))).values()
    assert not cold.settings.do_sample


def test_strategies_are_all_that_the_pair_supports() -> None:
    every = names(strategies=["all"])
    assert {"genai constant", "traced auto", "traced suffix"} <= set(every)
    assert "genai auto" not in every
    assert "genai confidence" not in available(HEAD, SETTINGS), "GenAI ignores it with a head"
    varied = set(names(strategies=["all"], lookaheads=[2, 4]))
    assert {"genai constant, lookahead 2", "traced constant, lookahead 4"} <= varied
    assert "traced auto" in varied, "it takes no lookahead"
    mixed = names(strategies=["same", "traced suffix", "traced auto"], lookaheads=[2])
    assert mixed == ["traced constant, lookahead 2", "traced confidence", "traced auto", "traced suffix"]
    tuned = PRESETS["tune"].plan(PAIR, TASKS, SETTINGS, {"strategies": ("traced auto",)})
    assert [*tuned.variants] == ["traced auto"], "the preset's lookaheads and thresholds have no effect"


@pytest.mark.parametrize(
    ("settings", "axes", "message"),
    [
        (SETTINGS, {"lookaheads": [0]}, "greater than or equal to 1"),
        (SETTINGS, {"lookaheads": ["gif"]}, r"Lookaheads \(lookaheads\) should be a valid integer.*got 'gif'"),
        (SETTINGS, {"lookahead": [1]}, "no setting called 'lookahead'"),
        (SETTINGS, {"strategies": ["magic"]}, "no strategy 'magic'"),
        (SETTINGS, {"strategies": ["traced auto"], "lookaheads": [2]}, "A lookahead has no effect with traced auto"),
        (GenerationSettings.checked(engine="traced", drafter="suffix"), {"lookaheads": [2]}, "do not affect"),
        (SETTINGS, {"concurrency": [2]}, "one request at a time"),
        (GENAI, {"concurrency": [0]}, "from 1 to 256"),
        (GENAI.model_copy(update={"do_sample": True}), {"concurrency": [2]}, "switch sampling off"),
        (
            SETTINGS,
            {"lookaheads": range(1, 17), "temperatures": [n / 50 for n in range(1, 40)]},
            f"at most {MAX_VARIANTS}",
        ),
    ],
    ids=str,
)
def test_impossible_plans_are_refused(settings: GenerationSettings, axes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        names(settings, **axes)


def plan(**options: Any) -> Plan:
    return Plan(PAIR, TASKS, SETTINGS, grid(PAIR, SETTINGS, Axes(lookaheads=(1, 2, 3))), **options)


def test_drafters_and_engines_have_stages_of_their_own_that_share_the_time() -> None:
    variants = grid(
        PAIR, SETTINGS, Axes(strategies=("traced constant", "traced lookup", "genai constant", "traced auto"))
    )
    stages = [*Plan(PAIR, TASKS, SETTINGS, variants, minutes=1).stages()]
    assert [(stage.engine, sorted(stage.groups[0].order)) for stage in stages] == [
        ("traced", ["traced auto", "traced constant"]),
        ("traced", ["traced lookup"]),
        ("genai", ["genai constant"]),
    ]
    assert [stage.until for stage in stages] == [0.5, 0.75, 1]


def test_sampling_draws_anew_in_each_repeat() -> None:
    warm = Plan(PAIR, TASKS, SETTINGS, grid(PAIR, SETTINGS, Axes(temperatures=(0, 0.8))))
    assert warm.settings_of("temperature 0.8", 2).seed == SETTINGS.seed + 2
    assert warm.settings_of("temperature 0", 2).seed == SETTINGS.seed


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_plan_whose_total_counts_its_rows(preset: str) -> None:
    chosen = PRESETS[preset]
    later = Task(name="x", task="chat", prompt="And then?", before=("Say",))
    made = chosen.plan(PAIR, [*TASKS, later], chosen.settings(PAIR), repeats=2)
    assert (later in made.tasks) == (preset != "load"), "of several at once, only first turns"
    rows = sum(len(group.order) for stage in made.stages() for group in stage.groups)
    assert made.total == rows


@pytest.mark.parametrize(
    "options", [{"repeats": 0}, {"repeats": 10**22}, {"minutes": 0}, {"minutes": float("nan")}, {"minutes": 1e9}]
)
def test_minutes_and_repeats_have_limits(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="are from"):
        plan(**options)
