"""The Python interface, on scripted engines in a process of their own, and once as a script on the bundled pair."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import specdemo
from specdemo.errors import SettingsError, UsageError
from specdemo.models.catalogue import PAIR_VARIABLE, bundled_pair
from specdemo.records import Phase, Progress, Slice
from tests.support import scripted_app
from tests.support.step_costs import remember_costs

ROOT = Path(__file__).resolve().parents[1]
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def pair() -> Iterator[specdemo.Pair]:
    with specdemo.Pair(bundled_pair(), engines=scripted_app.load) as pair:
        yield pair


@pytest.fixture(scope="module")
def run(pair: specdemo.Pair) -> specdemo.Run:
    return specdemo.compare(pair, PROMPT, repeats=2, num_assistant_tokens=3, max_new_tokens=48)


def test_public_names_exist() -> None:
    for name in specdemo.__all__:
        assert getattr(specdemo, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        specdemo.nothing  # noqa: B018


def test_a_run_has_its_figures(run: specdemo.Run) -> None:
    assert run.speedup is not None
    assert run.speedup.low <= run.speedup.ratio <= run.speedup.high
    assert run.acceptance_rate is not None
    assert (run.mean_acceptance_length or 0) > 1
    assert run.identical
    assert run.comparison.settings.num_assistant_tokens == 3
    assert len(run.comparison.repeats) == 2
    assert run.comparison.costs is not None


def test_a_run_is_saved_by_its_suffix_and_read_again(run: specdemo.Run, tmp_path: Path) -> None:
    for name, begin in {"a.html": b"<!", "a.gif": b"GIF8", "a.json": b"{"}.items():
        assert run.save(tmp_path / name).read_bytes().strip().startswith(begin)
    assert specdemo.open_run(tmp_path / "a.json").to_dict() == run.to_dict()
    assert run._repr_html_().startswith("<iframe srcdoc=")
    with pytest.raises(UsageError, match="end the name in"):
        run.save(tmp_path / "a.pdf")
    with pytest.raises(specdemo.SpecdemoError, match="choose a JSON file"):
        specdemo.open_run(tmp_path / "nowhere.json")


def test_a_runs_charts_are_plotly_figures_by_name(run: specdemo.Run) -> None:
    assert run.figure().layout.title.text == "Tokens over time"
    assert run.figure("acceptance").update_layout(height=300).to_json()
    with pytest.raises(UsageError, match="no chart 'speed'; the charts are tokens, acceptance, timing"):
        run.figure("speed")


def test_events_are_reported_as_they_happen(pair: specdemo.Pair) -> None:
    events = list[Any]()
    run = specdemo.compare(pair, PROMPT, repeats=0, max_new_tokens=32, on_event=events.append)
    assert any(isinstance(event, Phase) for event in events)
    for side in ("plain", "speculative"):
        slices = [event for event in events if isinstance(event, Slice) and event.side == side]
        tokens = [token for each in slices for step in each.rounds for token in step.committed]
        assert tokens == list(run.comparison.side(side).tokens)


def test_measurements_end_in_reports(pair: specdemo.Pair, tmp_path: Path) -> None:
    states: list[Progress[Any]] = []
    few: dict[str, Any] = {"repeats": 1, "max_new_tokens": 24, "on_progress": states.append}
    path = tmp_path / "tuned.json"
    tuned = specdemo.experiment(pair, PROMPT, lookaheads=[2, 4], path=path, **few)
    assert states[-1].done == states[-1].total
    assert len(tuned.rows) == 2
    assert [*tuned.figures] == ["speedup", "length"]
    assert json.loads(path.read_text())["conclusion"] == tuned.opening[0]
    assert {each.suffix for each in tmp_path.iterdir()} == {".json", ".html"}
    with pytest.raises(UsageError, match="no preset 'bensh'; choose bench"):
        specdemo.experiment(pair, preset="bensh")


def test_mistakes_are_reported_before_loading(pair: specdemo.Pair) -> None:
    with pytest.raises(SettingsError, match="less than or equal to"):
        specdemo.compare(pair, PROMPT, num_assistant_tokens=99)
    with pytest.raises(SettingsError, match="no setting called"):
        specdemo.compare(pair, PROMPT, lookahead=3)
    with pytest.raises(SettingsError, match="max_ngram_size has no effect with policy='constant'; leave it out"):
        specdemo.compare(pair, PROMPT, num_assistant_tokens=3, max_ngram_size=2)
    with pytest.raises(specdemo.SpecdemoError, match="nothing-of-this-name"):
        specdemo.load("nothing-of-this-name")
    with pytest.raises(UsageError, match="leave target and draft out"):
        specdemo.load("story-pair", url="http://127.0.0.1:1")


def test_pairs_are_found_by_name() -> None:
    assert specdemo.load("story-pair", precision="f32").models == specdemo.load().models
    alone = specdemo.load("story-pair", None)
    assert alone.models.draft is None
    assert alone.settings().drafter == "lookup"


@pytest.mark.openvino
def test_the_readmes_python_code_runs_as_a_script(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    script = tmp_path / "readme.py"
    block = block.replace("SmolLM2-135M-Instruct", "story-pair")  # which needs no download
    script.write_text(block.replace("num_assistant_tokens=3", "num_assistant_tokens=3, repeats=0, max_new_tokens=16"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), PAIR_VARIABLE: "story-pair"}
    remember_costs(specdemo.load("story-pair").models)
    done = subprocess.run(
        [sys.executable, script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "×" in done.stdout, "the speedup"
