"""What must not take memory: many visitors."""

from itertools import pairwise
from pathlib import Path

import httpx
import psutil

from tests.support.browser import started
from tests.support.visitors import RunningPage, Visitor


def test_memory_does_not_grow_with_visitors(tmp_path: Path) -> None:
    resident = []
    with (
        started(tmp_path, "-m", "tests.support.visitors", tmp_path, "5") as app,
        httpx.Client(base_url=app.url, timeout=120) as http,
    ):
        for _ in range(4):
            for _ in range(12):
                assert Visitor(RunningPage(http)).opens()["success"]
            resident.append(psutil.Process(app.process.pid).memory_info().rss)
    growth = [after - before for before, after in pairwise(resident)]
    assert min(growth) < 12 * 0.1e6  # a visitor whose state is kept takes 0.4 MB, and would so each time
