"""Plans, and their rows on the scripted engine with simulated clocks: time limits and batches."""

from collections.abc import Callable
from typing import Any

import pytest

from specdemo.capabilities import EngineName
from specdemo.engines.base import Arrival, Batch
from specdemo.errors import PromptError, RunError, SettingsError
from specdemo.experiments.concurrent import Block, RequestProgress
from specdemo.experiments.plan import MAX_VARIANTS, PRESETS, Axes, Plan, available_strategies, grid
from specdemo.experiments.prompts import Task
from specdemo.experiments.report import build_report
from specdemo.experiments.rows import Latency, Result, measure, points
from specdemo.records import ModelPair, Request, Trial
from specdemo.settings import GenerationSettings
from specdemo.strategies import Plain, Strategy
from tests.support.scripted import ScriptedEngine

PAIR = ScriptedEngine().pair
SETTINGS = GenerationSettings(engine="traced", ignore_eos=True, max_new_tokens=61)
GENAI = SETTINGS.model_copy(update={"engine": "genai"})
TASKS = [Task(name=f"{task} {n}", task=task, prompt=f"Say {n}") for task in ("tales", "songs") for n in (1, 2)]
HEAD = PAIR.model_copy(update={"draft": PAIR.target.model_copy(update={"head": "eagle3"})})
GRID = grid(PAIR, SETTINGS, Axes(lookaheads=(1, 4, 8)))
STRATEGIES = ("genai constant", "traced constant", "traced auto")


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
    assert "genai confidence" not in available_strategies(HEAD, SETTINGS), "GenAI ignores it with a head"
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
        (SETTINGS, {"strategies": ["traced constant", "traced auto"], "lookaheads": [0]}, "greater than"),
        (SETTINGS, {"concurrency": [2]}, "one request at a time"),
        (SETTINGS, {"concurrency": [2], "strategies": ["same"]}, "one request at a time"),
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


def test_a_number_of_repeats_takes_the_place_of_a_presets_minutes() -> None:
    chosen: list[dict[str, Any]] = [{}, {"repeats": 4}, {"repeats": 4, "minutes": 1}, {"minutes": 1440}]
    made = [PRESETS[name].plan(PAIR, TASKS, SETTINGS, **each) for name in ("tune", "bench") for each in chosen]
    limits = [(4, None), (4, 1), (12, 1440)]
    assert [(each.repeats, each.minutes) for each in made] == [(12, 2), *limits, (3, None), *limits]


@pytest.mark.parametrize(
    "options", [{"repeats": 0}, {"repeats": 1001}, {"minutes": 0}, {"minutes": float("nan")}, {"minutes": 1441}]
)
def test_minutes_and_repeats_have_limits(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="are from"):
        plan(**options)


def load(name: EngineName, pair: ModelPair) -> ScriptedEngine:
    return ScriptedEngine(wrong=(7, 20), extra=0.002 if name == "genai" else 0.001)


def plan(**options: Any) -> Plan:
    return Plan(PAIR, TASKS, SETTINGS, options.pop("variants", GRID), **options)


def finished(made: Plan, load: Callable[..., Any] = load, **options: Any) -> Result:
    *_, last = measure(made, load, **options)
    return last.result


def test_every_variant_runs_on_every_prompt_in_every_repeat() -> None:
    states = list(measure(plan(variants=grid(PAIR, SETTINGS, Axes(strategies=STRATEGIES))), load))
    result = states[-1].result
    assert {(row.variant, row.prompt, row.repeat) for row in result.rows} == {
        (name, task.name, repeat) for name in STRATEGIES for task in TASKS for repeat in range(3)
    }
    assert (states[-1].done, states[-1].total, states[-1].seconds_left) == (36, 36, 0)
    assert set(result.engines) == {"genai", "traced"}
    assert all(row.problem is None and row.trial is not None and row.trial.identical for row in result.rows)
    assert Result.model_validate_json(result.model_dump_json()) == result


def test_an_engine_loaded_beforehand_stays_loaded() -> None:
    engine = ScriptedEngine()
    engine.close = lambda: pytest.fail("it belongs to somebody else")  # type: ignore[method-assign]
    *_, last = measure(plan(), lambda *_: engine, keep=True)
    assert last.result.complete
    assert engine.requests == 0


def test_each_precision_is_loaded_in_turn_and_closed() -> None:
    events: list[str] = []

    class Engine(ScriptedEngine):
        def close(self) -> None:
            events.append("closed")

    def loads(name: EngineName, pair: ModelPair) -> ScriptedEngine:
        events.append(name)
        return Engine()

    finished(
        plan(variants=grid(PAIR, SETTINGS, Axes(strategies=("traced constant", "genai constant"))), repeats=1), loads
    )
    assert events == ["traced", "closed", "genai", "closed"]


def test_a_measurement_ends_with_its_time_and_names_what_it_did_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))  # each reading advances it by a second, so the time limit ends after the first run
    monkeypatch.setattr("specdemo.experiments.rows.perf_counter", lambda: next(clock))
    *_, last = measure(plan(minutes=0.01, repeats=12), load)
    result = last.result
    assert len(result.rows) == 1
    assert last.limit == pytest.approx(0.6)
    assert result.complete, "the time is over, and nothing is missing"
    (note,) = (
        note for note in build_report(result).notes if note.startswith("Not tried for lack of time: lookahead ")
    )
    assert note.count("lookahead") == len(GRID) - 1
    together = PRESETS["load"].plan(PAIR, TASKS, GENAI, {"concurrency": (1, 2)}, minutes=0.01)
    assert len(finished(together).rows) == 1


def test_runs_are_shortened_until_every_setting_is_tried_within_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdemo.experiments.rows.perf_counter", lambda: 10.0)
    whole, half, least = (
        [*measure(plan(minutes=(10 + seconds) / 60, repeats=1), lambda *_: ScriptedEngine(), began=0.0)][-2]
        for seconds in (len(GRID) * 2 * 2 * 0.67, len(GRID) * 2 * 2 * 0.35, 0.01)
    )
    assert whole.doing == f"measuring {len(GRID)} settings, each about 2 times, at most 61 tokens a run"
    assert half.result.settings.max_new_tokens == pytest.approx(30, abs=2)
    assert {row.variant for row in half.result.rows} == {*GRID}
    assert all(row.trial is not None and row.trial.tokens < 33 for row in half.result.rows)
    assert least.doing.endswith("most of them once, at most 8 tokens a run")


def test_impossible_runs_are_left_out_with_the_reason_and_none_at_all_is_an_error() -> None:
    def refuse(engine: ScriptedEngine, request: Request) -> None:
        if "2" in request.prompt:
            raise PromptError("The prompt is too long.")

    picky = ScriptedEngine(on_request=refuse)
    result = finished(plan(repeats=1), lambda *_: picky)
    assert {row.prompt: row.problem for row in result.rows}["tales 2"] == "The prompt is too long."
    assert sum(row.trial is None for row in result.rows) == 6
    assert [point.runs for point in points(result)] == [2, 2, 2]
    assert (
        build_report(result).notes[-1]
        == "Left out for lookahead 4, lookahead 8, lookahead 1: The prompt is too long."
    )
    hopeless = Plan(**vars(plan(repeats=1)) | {"tasks": TASKS[1:2]})
    with pytest.raises(RunError, match="The prompt is too long"):
        finished(hopeless, lambda *_: picky)


def test_later_turns_of_a_chat_follow_the_targets_own_answers() -> None:
    requests = list[Request]()
    engine = ScriptedEngine(on_request=lambda _, request: requests.append(request))
    later = Task(name="2", task="chat", prompt="And then?", before=("Tell me.", "More."))
    finished(Plan(**vars(plan(repeats=2)) | {"tasks": [later]}), lambda *_: engine)
    later_requests = [request for request in requests if request.prompt == "And then?"]
    assert later_requests
    assert {tuple(turn.prompt for turn in each.history) for each in later_requests} == {("Tell me.", "More.")}
    assert all(request.history[0].answer for request in later_requests)
    assert [each.prompt for each in requests if each.prompt in ("Tell me.", "More.")] == ["Tell me.", "More."], "once"


def test_every_second_repeat_reverses_the_blocks() -> None:
    """So that drift favours neither side. No more requests are made than keep two running."""
    plain, requests = list[bool](), list[str]()

    class Watched(ScriptedEngine):
        def batch(self, strategy: Strategy) -> Batch:
            plain.append(isinstance(strategy, Plain))
            return super().batch(strategy)

    watched = Watched(on_request=lambda _, request: requests.append(request.prompt))
    finished(PRESETS["load"].plan(PAIR, TASKS, GENAI, {"concurrency": (2,)}, repeats=3), lambda *_: watched)
    assert sum(prompt.startswith("Say ") for prompt in requests) == 6 * (2 + 4), "warm-up, and four prompts"
    warm_and_measured = [kind for block in (False, True, True, False, False, True) for kind in (block, block)]
    assert plain == warm_and_measured


def test_a_block_by_hand() -> None:
    request = RequestProgress("Say", began=10.0)
    for at, tokens, output in ((11.0, 1, (5,)), (12.0, 2, (6, 7)), (13.0, 2, (8, 9))):
        request.add(Arrival(0, at, tokens, output, (), None))
    rounds = ((4, 1), (None, 1), (4, 2))
    block = Block(3.0, 20, (request,), rounds, 0.1)
    assert (block.ttft, block.tpot, request.output) == ((1.0,), (0.5,), "5 6 7 8 9 ")
    trial = block.against(Block(8.0, 40, (request,), None, None))
    assert (trial.seconds, trial.plain_seconds, trial.tokens, trial.identical) == (3.0, 4.0, 20, True)
    assert (trial.rounds, trial.run_tokens, trial.proposed, trial.accepted) == (3, 7, 8, 3)


def test_points_are_ratios_of_sums() -> None:
    result = finished(plan(repeats=1))
    values = {"tokens": 10, "seconds": 1, "plain_seconds": 2, "identical": True, "rounds": 5, "run_tokens": 12}
    one = Trial(**values, proposed=8, accepted=2)
    other = {"tokens": 50, "seconds": 3, "plain_seconds": 4, "identical": False, "rounds": 15, "run_tokens": 48}
    for counts, length, rate in (({"proposed": 12, "accepted": 9}, 3, 0.55), ({"rounds": None}, None, None)):
        trials = one, Trial(**values | other | counts)
        rows = tuple(result.rows[0].model_copy(update={"trial": trial}) for trial in trials)
        (point,) = points(result.model_copy(update={"rows": rows}))
        assert (point.tokens_per_second, point.plain_tokens_per_second, point.speedup.ratio) == (15, 10, 1.5)
        assert (point.mean_acceptance_length, point.acceptance_rate) == (length, rate)
        assert (point.runs, point.outputs) == (2, "outputs identical in 1 of 2")


def test_percentiles_are_those_of_all_requests_of_all_repeats() -> None:
    result = finished(PRESETS["load"].plan(PAIR, TASKS, GENAI, {"concurrency": (2,)}, repeats=2))
    slow, fast = tuple(float(n) for n in range(51)), tuple(float(n) for n in range(51, 101))
    rows = [
        row.model_copy(update={"ttft": (part, (1.0, 3.0)), "tpot": (part, part)})
        for row, part in zip(result.rows, (slow, fast), strict=True)
    ]
    (point,) = points(result.model_copy(update={"rows": tuple(rows)}))
    assert point.ttft == (Latency(mean=50, p50=50, p95=95, p99=99), Latency(mean=2, p50=2, p95=3, p99=3))
    *_, table = build_report(result).tables
    assert build_report(result).notes[0].startswith("Speedup of several requests at once: ")
    assert [row[:2] for row in table.rows] == [["concurrency 2", "plain"], ["concurrency 2", "speculative"]]
    assert table.columns[2:6] == ["TTFT mean", "TTFT P50", "TTFT P95", "TTFT P99"]
