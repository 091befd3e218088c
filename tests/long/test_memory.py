"""What takes memory: the draft; and what must not: a page's many runs, and many visitors."""

from itertools import pairwise
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.browser import Visit, repeated, run, started
from tests.support.visitors import RunningPage, Visitor


@pytest.mark.browser
def test_many_runs_do_not_grow_the_page(visit: Visit) -> None:
    page = visit("/?max_new_tokens=64")
    sizes = []
    for _ in range(6):
        page.evaluate("localStorage.removeItem('specdemo-runs')")  # of which it shows as many as it keeps
        run(page)
        repeated(page)
        page.evaluate("gc()")
        sizes.append(
            page.evaluate("[document.querySelectorAll('*').length, performance.memory.usedJSHeapSize / 2**20]")
        )
    nodes, heap = zip(*sizes[2:], strict=True)
    assert max(nodes) - min(nodes) < 0.02 * max(nodes)
    assert heap[-1] - heap[0] < 3  # MiB over four runs; a leaked run is about one


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
