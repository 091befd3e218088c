"""Take pictures of the whole page, to be looked at.

    python -m tests.support.screenshots FOLDER

The page on the default pair: in the middle of a run and after it, the run's anatomy, a
measurement, and the models; each at three sizes, light and dark. What lies below the window is on pictures
of the whole page. The README's moving picture is made by `specdemo compare --gif`.
"""

import sys
from pathlib import Path

from playwright.sync_api import Page, ViewportSize, sync_playwright

from specdemo.costs import start_settings
from specdemo.engines import load_engine
from specdemo.models.catalogue import default_pair
from specdemo.ui.page import build_page, look, routes
from specdemo.ui.server import application, listening
from specdemo.ui.session import initial_pair
from specdemo.worker import Prepare, Worker
from tests.support.browser import FLAGS, installed, models_tab, open_tab, repeated, run, set_slider, start, watch

SIZES: tuple[ViewportSize, ...] = (
    {"width": 1440, "height": 900},
    {"width": 1280, "height": 720},
    {"width": 1024, "height": 768},
    {"width": 390, "height": 844},
)
SCHEMES = ("light", "dark")


def photograph(page: Page, folder: Path, name: str, *, whole: bool = True) -> None:
    """What is shown now, at every size, light and dark; `whole`: also what is out of the window."""
    for scheme in SCHEMES:
        page.evaluate("dark => document.body.classList.toggle('dark', dark)", scheme == "dark")
        for size in SIZES:
            page.set_viewport_size(size)
            page.wait_for_timeout(1000)  # until charts have followed
            page.screenshot(path=folder / f"{name}-{size['width']}-{scheme}.png")
            if whole:
                page.screenshot(path=folder / f"{name}-{size['width']}-{scheme}-whole.png", full_page=True)
    page.set_viewport_size(SIZES[0])
    page.wait_for_timeout(1000)


def take(page: Page, url: str, folder: Path) -> None:
    """All pictures."""
    page.goto(url)
    page.wait_for_selector("#run:not([disabled])")
    photograph(page, folder, "0-before")
    page.locator(".speed").evaluate("e => { e.value = '20'; e.dispatchEvent(new Event('change')); }")
    start(page)
    page.wait_for_function("document.querySelectorAll('.pane.plain .text [data-index]').length > 20", timeout=120_000)
    page.click(".toggle")
    photograph(page, folder, "1-playing", whole=False)
    page.select_option(".speed", "")
    run(page)
    repeated(page)
    photograph(page, folder, "2-done")
    open_tab(page, "Anatomy")
    page.wait_for_selector(".anatomy .step")
    for _ in range(3):
        page.click(".anatomy .forward")
    photograph(page, folder, "3-anatomy")
    open_tab(page, "Measure")
    page.fill("#measure-prompts textarea", "Why is the sky blue?")
    for slider, value in (("measure-minutes", 1), ("measure-tokens", 32)):
        set_slider(page, slider, value)
    measure(page, "#measure-start", "#measure-stop")
    photograph(page, folder, "4-measure")
    models_tab(page)
    page.wait_for_selector("#report table")
    photograph(page, folder, "5-models")


def measure(page: Page, button: str, stop: str) -> None:
    """Press a button, and wait until there is nothing to stop."""
    page.click(button)
    page.wait_for_selector(stop)
    page.wait_for_selector(stop, state="hidden", timeout=300_000)


def main() -> None:
    """Take all of them."""
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    pair = default_pair()
    worker = Worker(load_engine, Prepare(start_settings(pair).engine, initial_pair(pair)))
    app = application(build_page(worker, pair), routes(), **look())
    with listening(app) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=installed(), args=FLAGS)
        page = browser.new_page(viewport=SIZES[0])
        watch(page)
        take(page, url, folder)
        browser.close()
    worker.close()


if __name__ == "__main__":
    main()
