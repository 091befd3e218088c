import json
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from specdemo.child import result_of
from specdemo.errors import EngineError
from specdemo.experiments.plan import PRESETS, Axes, Plan, grid
from specdemo.experiments.prompts import typed_tasks
from specdemo.experiments.rows import Result, measure
from specdemo.racing.worker import Engines, Job
from specdemo.records import Phase, Progress
from specdemo.settings import GenerationSettings
from specdemo.ui.controls import start_values
from specdemo.ui.events import job_updates
from specdemo.ui.measure import (
    _PROMPTS_HINT,
    EMPTY_BOARD,
    START,
    MeasureCallbacks,
    preview,
    search_result,
    variant_choices,
    with_current,
)
from specdemo.ui.session import with_chat_cache
from tests.support.scripted import ScriptedEngine

ENGINE = ScriptedEngine(wrong=(20, 30), draft=0.001)
SETTINGS = GenerationSettings(engine="traced", max_new_tokens=40, ignore_eos=True)
VALUES = start_values(ENGINE.pair) | {"engine": "traced"}
VISITOR: Any = SimpleNamespace(session_hash="visitor")


class Sessions:
    """Its jobs run on scripted engines."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []

    def measure(self, visitor: str, what: str, job: Job) -> Iterator[Any]:
        self.jobs.append(job)
        yield from job(Engines(lambda name, pair: ENGINE, lambda: False))


def measured(ticked: list[str], *, preset: str = "Compare all strategies") -> list[list[Any]]:
    """Updates of message, board, files, best setting, its button, start and stop."""
    callbacks = MeasureCallbacks(Sessions())  # type: ignore[arg-type]
    return list(callbacks.measure(VISITOR, True, ENGINE.pair, None, preset, ticked, "Say", 1, 40, 1, **VALUES))


def test_a_measurement_says_how_long_it_takes_shows_what_it_measures_and_offers_the_best() -> None:
    first, *_, last = updates = measured(["traced constant", "traced auto"])
    assert "2 variants, 1 prompt, 1 min with loading" in first[0]
    boards = [json.loads(update[1]) for update in updates if isinstance(update[1], str)]
    assert boards[0] == json.loads(EMPTY_BOARD), "nothing of an earlier one stays"
    assert "traced constant" in str(boards[-1])
    assert [Path(path).suffix for path in last[2]["value"]] == [".json", ".html"]
    assert isinstance(last[3], GenerationSettings)
    assert (last[4]["visible"], last[5]["value"]) == (True, START)


@pytest.mark.parametrize("preset", [preset.title for name, preset in PRESETS.items() if name != "measure"])
def test_every_choice_offers_its_variants_and_measures_them(preset: str) -> None:
    update = variant_choices(preset, ENGINE.pair, **VALUES)
    assert update["value"] == update["choices"]
    *_, last = measured(update["value"][:2], preset=preset)
    assert last[2]["visible"]


def test_an_impossible_measurement_is_refused_with_a_reason() -> None:
    assert "Choose at least one variant" in measured([])[0][0]
    refused = variant_choices("Find the fastest setting", ENGINE.pair, **VALUES | {"num_assistant_tokens": -1})
    assert (refused["choices"], "Lookahead" in refused["info"]) == ([], True)


def tuned(now: GenerationSettings, lookaheads: tuple[int, ...]) -> tuple[Plan, Result]:
    variants = grid(ENGINE.pair, SETTINGS, Axes(lookaheads=lookaheads))
    plan = Plan(ENGINE.pair, typed_tasks(["Say"]), SETTINGS, variants, repeats=2)
    plan = Plan(**vars(plan) | {"variants": with_current(plan, now)})
    *_, last = measure(plan, lambda *_: ENGINE)
    return plan, last.result


def lookahead(n: int) -> GenerationSettings:
    return SETTINGS.model_copy(update={"num_assistant_tokens": n})


def test_only_a_faster_setting_is_set() -> None:
    _, result = tuned(lookahead(1), (1, 8))
    chosen, better = search_result(result, lookahead(1))
    assert chosen is not None
    assert chosen.num_assistant_tokens == 8
    assert better.title == "Set: lookahead 8"
    assert [row[0] for row in better.rows] == ["lookahead 8", "lookahead 1, yours before"]
    assert all("× (95 % interval" in row[1] for row in better.rows)
    assert better.remark == "Runs of at most 40 tokens with this prompt."
    chosen, same = search_result(result, lookahead(8))
    assert chosen is None
    assert (same.title, same.paragraphs) == ("Kept: lookahead 8", ["Nothing that was tried is faster."])


def test_the_search_uses_the_current_prompt_and_the_loaded_pair() -> None:
    sessions = Sessions()
    pair = ENGINE.pair
    chat = pair.model_copy(update={"target": pair.target.model_copy(update={"chat_template": True})})
    values = start_values(chat)
    callbacks = MeasureCallbacks(sessions)  # type: ignore[arg-type]
    first, *_, last = callbacks.find(VISITOR, True, chat, "What one sees", "30 seconds", **values)
    assert "30 s with loading" in first[0]
    assert json.loads(last[1])[0]["title"].startswith(("Set: ", "Kept: "))
    (job,) = sessions.jobs
    assert job.pair == with_chat_cache(chat, GenerationSettings())
    assert job.pair.runtime.enable_prefix_caching
    assert [task.prompt for task in job.work.keywords["plan"].tasks] == ["What one sees"]


def updates(*states: object, error: Exception | None = None) -> Generator[list[Any], None, Any]:
    def steps() -> Iterator[Any]:
        yield from states
        if error is not None:
            raise error

    return job_updates(steps(), lambda *update: [*update], lambda state: f"{state.done} done")


def test_phases_and_progress_are_shown_and_the_end_clears_them() -> None:
    half, full = (Progress(done, 2, 61.0, None) for done in (1, 2))
    phase, first, last = updates(Phase("loading"), half, full)
    assert "Loading the models" in phase[0]
    assert "1 of 2, 1 min 1 s left" in first[0]
    assert last == ["", "2 done"]
    assert result_of(updates(half, full)) == full


def test_finished_results_stay_after_a_stop() -> None:
    half = Progress(1, 2, None, None)
    assert "Stopped after 1 of 2; finished results are kept" in [*updates(half)][-1][0]
    for error in (EngineError(), ZeroDivisionError()):
        *_, (message, board) = updates(half, error=error)
        assert ('role="alert"' in message, board) == (True, "1 done")
        assert result_of(updates(half, error=error)) == half
    assert [*updates(error=EngineError())][-1][1] == gr.skip()
    assert "before anything was measured" in [*updates()][-1][0]


def test_without_a_file_the_hint_stands() -> None:
    assert [*preview(None)] == [[_PROMPTS_HINT]]
