"""Retake the pictures in `assets/screenshots`.

    python -m tests.screenshots [wide-light phone-dark …]

The page on the bundled pair, at desktop and phone width, light and dark, in the middle of a run and after it, the
run's anatomy, a sweep, a benchmark, and the catalogue. The moving picture is made by `specdemo compare --gif`.
"""

import shutil
import sys
from typing import Literal

from playwright.sync_api import Browser, Page, sync_playwright

from specdemo.engines import load_engine
from specdemo.models.pairs import bundled_pair
from specdemo.resources import ASSETS
from specdemo.ui.page import build_page, launch_options
from specdemo.worker import WithEngine, Worker
from tests.browser import open_tab

PICTURES = ASSETS / "screenshots"
SIZES = {"wide": (1360, 900), "phone": (390, 844)}


def take(browser: Browser, url: str, size: str, scheme: Literal["light", "dark"]) -> None:
    """All pictures of one size and colour scheme."""
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, device_scale_factor=1.25
    )
    page = context.new_page()
    page.goto(f"{url}#engine=traced")
    page.wait_for_selector("#run:not([disabled])")
    page.wait_for_timeout(1500)
    page.click("#run")
    page.wait_for_selector(".race[data-state=playing]", timeout=60_000)
    page.wait_for_timeout(2200)
    page.screenshot(path=PICTURES / f"{size}-{scheme}-mid.png", full_page=True)
    page.wait_for_selector(".race[data-state=done]", timeout=60_000)
    page.wait_for_timeout(500)
    page.screenshot(path=PICTURES / f"{size}-{scheme}-done.png", full_page=True)
    open_tab(page, "Anatomy")
    page.wait_for_selector(".anatomy .step")
    for _ in range(3):
        page.click(".anatomy .forward")
    page.wait_for_timeout(800)
    page.screenshot(path=PICTURES / f"{size}-{scheme}-anatomy.png", full_page=True)
    open_tab(page, "Tune")
    page.fill("#longest input[type=number]", "6")
    measure(page, "#sweep", "#stop-sweep")
    measure(page, "#measure", "#stop-costs")
    page.wait_for_timeout(800)
    page.screenshot(path=PICTURES / f"{size}-{scheme}-tune.png", full_page=True)
    open_tab(page, "Benchmark")
    page.fill("#limit input[type=number]", "3")
    measure(page, "#run-bench", "#stop-bench")
    page.wait_for_timeout(800)
    page.screenshot(path=PICTURES / f"{size}-{scheme}-benchmark.png", full_page=True)
    open_tab(page, "Models")
    page.wait_for_selector(".catalogue .entry")
    page.wait_for_selector("#report table")
    page.wait_for_timeout(500)
    page.screenshot(path=PICTURES / f"{size}-{scheme}-models.png", full_page=size == "wide")
    context.close()


def measure(page: Page, start: str, stop: str) -> None:
    """Press a button, and wait until there is nothing to stop."""
    page.click(start)
    page.wait_for_selector(stop)
    page.wait_for_selector(stop, state="hidden", timeout=300_000)


def main() -> None:
    """Take all of them."""
    PICTURES.mkdir(exist_ok=True)
    worker = Worker(load_engine, WithEngine("genai", bundled_pair()))
    app = build_page(worker, bundled_pair())
    _, url, _ = app.launch(**launch_options(), prevent_thread_lock=True, quiet=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        every = [f"{size}-{scheme}" for size in SIZES for scheme in ("light", "dark")]
        for name in sys.argv[1:] or every:
            size, _, scheme = name.partition("-")
            take(browser, url, size, "dark" if scheme == "dark" else "light")
        browser.close()
    app.close()
    worker.close()


if __name__ == "__main__":
    main()
