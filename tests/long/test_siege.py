"""The benchmark of what the app withstands, in short."""

import json

import pytest
from playwright.sync_api import BrowserContext

from tests.benchmarks.siege.__main__ import MOST_BYTES, MOST_SILENCE, main
from tests.benchmarks.siege.storage import loaded
from tests.benchmarks.siege.tally import Tally
from tests.support.browser import App


def test_the_app_withstands_a_short_siege(capfd: pytest.CaptureFixture[str]) -> None:
    # servers of all kinds have tests of their own; each further flood draws a picture for 20 s
    few = {"clients": 4, "requests": 60, "floods": 8, "files": 120, "headers": 300, "servers": 6, "kills": 1}
    few |= {"stops": 1, "dropped": 1, "storage": 2, "runs": 0, "switches": 0}
    code = main([f"--{name}={count}" for name, count in few.items()])
    found = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert [found[name] for name in ("unexplained", "tracebacks", "mixed_up", "lost_rows")] == [0, 0, 0, 0]
    assert found["tried"] == found["answered"] + found["refused"] > sum(few.values())
    assert 0 < found["server_bytes"] < MOST_BYTES
    assert 0 < found["engine_bytes"] < MOST_BYTES
    assert code == 0 or found["silence"] >= MOST_SILENCE, "which a busy machine alone can cause"


@pytest.mark.browser
def test_browsers_of_the_siege_run_beside_those_of_other_tests(browser: BrowserContext, app: App) -> None:
    assert loaded(app.url, 1) == Tally(tried=1, answered=1)


@pytest.mark.openvino
def test_memory_is_measured_on_the_bundled_pair(capfd: pytest.CaptureFixture[str]) -> None:
    others = ("clients", "requests", "floods", "files", "headers", "servers", "kills", "stops", "dropped", "storage")
    none = [f"--{name}=0" for name in others]
    main([*none, "--runs=5", "--switches=2"])
    found = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (found["tracebacks"], found["unexplained"]) == (0, 0)
    assert -0.5 < found["growth"] < 0.5


def test_a_siege_holds_only_if_each_attempt_is_accounted_for() -> None:
    assert Tally(tried=3, answered=2, refused=1).held
    assert not Tally(tried=3, answered=2).held
    for wrong in ("unexplained", "tracebacks", "mixed_up", "lost_rows"):
        assert not Tally(**{wrong: 1}).held
