"""Every place that shows a run's speedup shows the same number."""

import base64
import gzip
import json
import re
from io import StringIO
from typing import Any

import pytest
from PIL import ImageDraw
from rich.console import Console

from specdemo.cli.terminal import print_comparison
from specdemo.estimate import Speedup, of_comparison
from specdemo.presentation import schema
from specdemo.presentation.conclusion import conclude
from specdemo.presentation.feed import feed_of
from specdemo.presentation.figures import figures
from specdemo.presentation.share import moving_picture, replay, verdict_picture
from specdemo.records import Comparison
from tests.support.machines import MACHINES, simulated


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    """A race on a machine that others disturb, so that totals, medians and the estimate all differ."""
    return simulated(MACHINES["bursts, a quarter"], 1.6, seed=3, repeats=4)


@pytest.fixture(scope="module")
def speedup(comparison: Comparison) -> Speedup:
    found = of_comparison(comparison)
    assert found is not None
    assert found.call == "faster"
    assert not found.wide
    return found


def end_event(lines: str) -> dict[str, Any]:
    """The last event of a run, as the page reads it."""
    *_, end = (event for event in map(json.loads, lines.splitlines()) if event["kind"] == "end")
    return dict(end)


def check(event: dict[str, Any], speedup: Speedup) -> None:
    assert event["headline"] == f"{speedup.middle:.2f}× faster"
    plain, speculative = event["seconds"]["plain"], event["seconds"]["speculative"]
    assert plain / speculative == pytest.approx(speedup.middle)
    assert f"{speedup.plain_steps_per_round:.2f} normal steps" in event["reason"]
    assert str(speedup) in event["why"]
    assert str(speedup) in event["figures"]


def test_the_page_and_its_history(comparison: Comparison, speedup: Speedup) -> None:
    check(end_event(feed_of(comparison).everything), speedup)


def test_the_html_file(comparison: Comparison, speedup: Speedup) -> None:
    page = replay(comparison).decode()
    found = max(re.findall(r"[A-Za-z0-9+/=]{400,}", page), key=len)
    check(end_event(gzip.decompress(base64.b64decode(found)).decode()), speedup)
    assert f"{speedup.middle:.2f}× faster" in page  # its title


def test_json(comparison: Comparison, speedup: Speedup) -> None:
    summary = schema.to_json(comparison)["summary"]
    assert summary["speedup"] == speedup.middle
    assert summary["speedup_interval"] == [speedup.low, speedup.high]
    assert summary["call"] == "faster"
    again = schema.from_json(json.loads(json.dumps(schema.to_json(comparison))))
    found = of_comparison(again)
    assert found is not None
    assert found.middle == pytest.approx(speedup.middle)


def test_the_terminal(comparison: Comparison, speedup: Speedup) -> None:
    out = StringIO()
    print_comparison(Console(file=out, width=200), comparison)
    assert f"{speedup.middle:.2f}× faster." in out.getvalue()
    assert str(speedup) in out.getvalue()
    assert conclude(comparison).sentence in out.getvalue()


@pytest.mark.parametrize("picture", [verdict_picture, moving_picture])
def test_pictures(comparison: Comparison, speedup: Speedup, picture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    text = ImageDraw.ImageDraw.text

    def note(self: ImageDraw.ImageDraw, xy: Any, words: str, *arguments: Any, **options: Any) -> None:
        drawn.append(words)
        text(self, xy, words, *arguments, **options)

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", note)
    picture(comparison)
    assert f"{speedup.middle:.2f}× faster" in drawn


def test_figures(comparison: Comparison, speedup: Speedup) -> None:
    assert next(figures(comparison)).speculative == str(speedup)


def test_rounds_by_tokens_accepted_are_all_rounds(comparison: Comparison) -> None:
    shown = {figure.name: figure.speculative for figure in figures(comparison)}["rounds by tokens accepted"]
    counts = [list(map(int, each.split(": "))) for each in shown.split(" · ")]
    rounds = comparison.speculative.rounds
    assert sum(times for _, times in counts) == len(rounds)
    assert sum(accepted * times for accepted, times in counts) == sum(step.accepted for step in rounds)
