"""How smoothly the page plays a run: updates a second of each pane, and the longest task of the page's thread.

    python -m tests.benchmarks.smoothness

The default pair in headless Chromium on the same machine as the engine, which must have nothing else to do. A run of
200 tokens and one of 1024; the latter is watched to its end, then replayed from its beginning.
"""

import os
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from playwright.sync_api import Page, expect, sync_playwright
from rich.console import Console
from rich.table import Table

from tests.support.browser import FLAGS, ROOT, installed, run, started

WATCH = """() => {
  window.seen = { tasks: [], plain: [], speculative: [] };
  new PerformanceObserver((list) => seen.tasks.push(...list.getEntries().map(({ duration }) => duration)))
    .observe({ type: "longtask" }); // those of 50 ms and more
  for (const side of ["plain", "speculative"]) {
    new MutationObserver(() => seen[side].push(performance.now()))
      .observe(document.querySelector(`.pane.${side} .text`), { childList: true, subtree: true });
  }
}"""
FORGET = "() => { for (const list of Object.values(seen)) list.length = 0; }"


def watched(page: Page, name: str, table: Table) -> None:
    """Wait until what has been started has been played, and say how that went."""
    page.wait_for_selector(".race[data-state=done]")
    seen: dict[str, list[float]] = page.evaluate("seen")
    row: list[Any] = [name]
    for side in ("plain", "speculative"):
        gaps = np.diff(seen[side])
        row += [f"{1000 / gaps.mean():.1f}", f"{gaps.max():.0f} ms"]
    longest = max(seen["tasks"], default=None)
    nodes = page.evaluate("document.querySelectorAll('*').length")
    table.add_row(*row, "below 50 ms" if longest is None else f"{longest:.0f} ms", f"{nodes:,}")
    page.evaluate(FORGET)


def main() -> None:
    """Print the figures."""
    columns = [f"{side}: {what}" for side in ("plain", "speculative") for what in ("updates/s", "longest gap")]
    table = Table("run", *columns, "longest task", "elements")
    with ExitStack() as opened:
        folder = opened.enter_context(TemporaryDirectory())
        path = os.pathsep.join([folder, str(ROOT), os.environ.get("PYTHONPATH", "")])
        app = opened.enter_context(started(Path(folder), ROOT / "app.py", PYTHONPATH=path))
        playwright = opened.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=installed(), args=FLAGS)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(300_000)
        page.goto(f"{app.url}/#engine=traced&ignore_eos=true&max_new_tokens=200")
        expect(page.locator("#run")).to_be_enabled(timeout=300_000)
        run(page)  # loads
        page.wait_for_timeout(5000)
        page.evaluate(WATCH)
        for tokens in (200, 1024):
            page.fill("#max_new_tokens input[type=number]", str(tokens))
            page.keyboard.press("Tab")
            page.evaluate("document.querySelector('.race').dataset.state = 'before'")
            page.click("#run")
            page.wait_for_selector(".race[data-state=playing]")
            watched(page, f"{tokens} tokens", table)
            page.wait_for_timeout(5000)  # of repeats
        page.evaluate(FORGET)
        page.click(".toggle")
        page.wait_for_selector(".race[data-state=playing]")
        watched(page, "1024 tokens, replayed", table)
        browser.close()
    Console().print(table)


if __name__ == "__main__":
    main()
