"""The Python interface, on scripted engines in a process of their own."""

import asyncio
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import specdemo
from specdemo.api.runs import FIGURES
from specdemo.errors import SettingsError, UsageError
from specdemo.models.pairs import bundled_pair
from specdemo.records import Phase, Progress
from tests.support import scripted_app

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "Once upon a time"
PUBLIC = {
    "Experiment", "LiveRound", "LiveRun", "Pair", "Run", "SpecdemoError", "compare", "experiment", "load", "open_run",
}  # fmt: skip


@pytest.fixture(scope="module")
def pair() -> Iterator[specdemo.Pair]:
    with specdemo.Pair(bundled_pair(), engines=scripted_app.load) as pair:
        yield pair


@pytest.fixture(scope="module")
def run(pair: specdemo.Pair) -> specdemo.Run:
    return specdemo.compare(pair, PROMPT, repeats=6, num_assistant_tokens=3, max_new_tokens=48)


def test_public_names_are_listed_once_and_lead_somewhere() -> None:
    assert set(specdemo.__all__) == PUBLIC
    for name in specdemo.__all__:
        assert getattr(specdemo, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        specdemo.nothing  # noqa: B018


def test_a_run_has_its_estimate_its_figures_and_its_text(run: specdemo.Run) -> None:
    speedup = run.speedup
    assert speedup is not None
    assert speedup.low is not None
    assert speedup.high is not None
    assert speedup.low <= speedup.middle <= speedup.high
    assert run.acceptance_rate is not None
    assert run.mean_acceptance_length is not None
    assert run.mean_acceptance_length > 1
    assert run.identical
    assert run.comparison.settings.num_assistant_tokens == 3
    assert run.text in run.comparison.plain.text
    assert "speedup" in str(run)


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_drawn_in_colours_of_their_own(run: specdemo.Run, name: str) -> None:
    figure = run.figure(name)
    assert any(len(trace.x) for trace in figure.data if trace.x is not None) or name == "confidence"
    assert "var(" not in figure.to_json()
    with pytest.raises(UsageError, match="choose from clock"):
        run.figure("nothing")


def test_the_acceptance_figure_shows_what_the_rounds_say(run: specdemo.Run) -> None:
    accepted = run.figure("acceptance").data[0]
    assert list(accepted.y) == [step.accepted for step in run.comparison.speculative.rounds]
    plain = run.figure("clock").data[0]
    assert plain.y[-1] == len(run.comparison.plain.tokens)


def test_a_run_becomes_json_and_comes_back(run: specdemo.Run, tmp_path: Path) -> None:
    assert json.loads(run.to_json(tmp_path / "run.json")) == run.to_dict()
    assert specdemo.open_run(tmp_path / "run.json").to_dict() == run.to_dict()
    with pytest.raises(specdemo.SpecdemoError, match="choose a JSON file"):
        specdemo.open_run(tmp_path / "nowhere.json")


def test_a_run_is_saved_as_its_ending_says(run: specdemo.Run, tmp_path: Path) -> None:
    for name, begin in {"a.html": b"<!", "a.png": b"\x89PNG", "a.json": b"{"}.items():
        assert run.save(tmp_path / name).read_bytes().strip().startswith(begin)
    with pytest.raises(UsageError, match="end it in"):
        run.save(tmp_path / "a.pdf")


def test_a_run_becomes_a_frame_where_pandas_is_installed(run: specdemo.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    frame = run.to_frame()
    assert frame[frame.side == "plain"].committed.sum() == 48
    assert frame[frame.side == "speculative"].accepted.sum() == sum(
        step.accepted for step in run.comparison.speculative.rounds
    )
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pip install pandas"):
        run.to_frame()


def test_a_notebook_shows_the_replay_in_a_frame_that_asks_nobody(run: specdemo.Run) -> None:
    html = run._repr_html_()
    assert html.startswith("<iframe srcdoc=")
    assert "default-src &#x27;none&#x27;" in html
    assert "src=&quot;http" not in html


def test_rounds_are_yielded_as_they_happen(pair: specdemo.Pair) -> None:
    live = pair.stream(PROMPT, repeats=0, max_new_tokens=32)
    with pytest.raises(UsageError, match="to its end first"):
        live.run  # noqa: B018
    rounds = [event for event in live if not isinstance(event, Phase)]
    for side in ("plain", "speculative"):
        mine = [event for event in rounds if event.side == side]
        assert [event.number for event in mine] == list(range(len(mine)))
        tokens = [token for event in mine for token in event.round.committed]
        assert tokens == list(live.run.comparison.side(mine[0].side).tokens)


def test_async_and_plain_iteration_see_the_same(pair: specdemo.Pair) -> None:
    async def numbers() -> list[tuple[str, int]]:
        live = pair.stream(PROMPT, repeats=0, max_new_tokens=32)
        return [(event.side, event.number) async for event in live if isinstance(event, specdemo.LiveRound)]

    live = pair.stream(PROMPT, repeats=0, max_new_tokens=32)
    seen = [(event.side, event.number) for event in live if isinstance(event, specdemo.LiveRound)]
    with ThreadPoolExecutor(1) as apart:  # other tests' browsers leave a running event loop in this thread
        assert apart.submit(asyncio.run, numbers()).result() == seen
        waited = pair.stream(PROMPT, repeats=0, max_new_tokens=32).wait()
        assert apart.submit(asyncio.run, waited).result().identical


def test_leaving_a_loop_frees_the_engine_for_what_comes_next(pair: specdemo.Pair) -> None:
    for event in pair.stream(PROMPT, max_new_tokens=512):
        if isinstance(event, specdemo.LiveRound) and event.number == 3:
            break
    assert specdemo.compare(pair, PROMPT, repeats=0, max_new_tokens=16).identical


def test_measurements_end_in_reports(pair: specdemo.Pair, tmp_path: Path) -> None:
    states: list[Progress[Any]] = []
    few: dict[str, Any] = {"repeats": 1, "max_new_tokens": 24}
    tuned = specdemo.experiment(pair, PROMPT, lookaheads=[2, 4], on_progress=states.append, **few)
    assert states[-1].done == states[-1].total
    assert tuned.conclusion in str(tuned)
    assert "var(" not in tuned.figure(next(iter(tuned.report.charts))).to_json()
    tuned.to_json(tmp_path / "tuned.json")
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".md", ".csv", ".html"}
    suite = tmp_path / "suite.jsonl"
    suite.write_text(json.dumps({"question_id": 1, "category": "chat", "turns": [PROMPT, "And then?"]}) + "\n")
    loaded = specdemo.experiment(pair, suite, preset="load", concurrency=[1, 2], **few)
    assert loaded._repr_html_().startswith("<iframe")
    with pytest.raises(UsageError, match="choose from"):
        loaded.figure("nothing")
    warmer = specdemo.experiment(pair, suite, preset="temperature", temperatures=[0, 0.8], **few)
    assert {row.variant for row in warmer.result.rows} == {"temperature 0", "temperature 0.8"}


def test_mistakes_are_told_before_anything_is_loaded(pair: specdemo.Pair) -> None:
    with pytest.raises(SettingsError, match="less than or equal to"):
        specdemo.compare(pair, PROMPT, num_assistant_tokens=99)
    with pytest.raises(SettingsError, match="no setting called"):
        specdemo.compare(pair, PROMPT, lookahead=3)
    with pytest.raises(specdemo.SpecdemoError, match="nothing-of-this-name"):
        specdemo.load("nothing-of-this-name")
    with pytest.raises(UsageError, match="no preset 'temprature'; choose temperature"):
        specdemo.experiment(pair, preset="temprature")
    with pytest.raises(UsageError, match="leave the target out"):
        specdemo.load("story-pair", url="http://127.0.0.1:1")


def test_pairs_are_found_by_name() -> None:
    default = specdemo.load()
    named = specdemo.load("story-pair", precision="f32")
    assert named.models == default.models
    alone = specdemo.load("story-pair", None)
    assert alone.models.draft is None
    assert alone.settings().drafter == "lookup"
    assert "story-pair" in repr(named)


def test_closing_ends_the_process_and_the_pair_can_be_used_again() -> None:
    pair = specdemo.Pair(bundled_pair(), engines=scripted_app.load)
    with pair:
        specdemo.compare(pair, PROMPT, repeats=0, max_new_tokens=16)
    assert specdemo.compare(pair, PROMPT, repeats=0, max_new_tokens=16).identical
    pair.close()
