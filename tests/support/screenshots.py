"""Take pictures of the whole page: python -m tests.support.screenshots FOLDER

On the default pair: before, during and after a run, its anatomy, a measurement, and the models; each at four sizes,
light and dark.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Page, ViewportSize, sync_playwright

from tests.support.browser import (
    FLAGS,
    finish,
    grown,
    installed,
    models_tab,
    open_tab,
    repeated,
    set_slider,
    start,
    started,
    watch,
)

SIZES: tuple[ViewportSize, ...] = (
    {"width": 1440, "height": 900},
    {"width": 1280, "height": 720},
    {"width": 1024, "height": 768},
    {"width": 390, "height": 844},
)


def photograph(page: Page, folder: Path, name: str) -> None:
    for scheme in ("light", "dark"):
        page.evaluate("dark => document.body.classList.toggle('dark', dark)", scheme == "dark")
        for size in SIZES:
            page.set_viewport_size(size)
            page.wait_for_timeout(1000)  # until charts have followed
            page.screenshot(path=folder / f"{name}-{size['width']}-{scheme}.png")
    page.set_viewport_size(SIZES[0])


def take(page: Page, folder: Path) -> None:
    page.wait_for_selector("#run:not([disabled])")
    photograph(page, folder, "0-before")
    page.locator(".speed").evaluate("e => { e.value = '20'; e.dispatchEvent(new Event('change')); }")
    start(page)
    grown(page, 20)
    page.click(".toggle")
    photograph(page, folder, "1-playing")
    page.select_option(".speed", "")
    finish(page)
    repeated(page)
    photograph(page, folder, "2-done")
    open_tab(page, "Anatomy")
    photograph(page, folder, "3-anatomy")
    open_tab(page, "Measure")
    for slider, value in (("measure-minutes", 1), ("measure-tokens", 32)):
        set_slider(page, slider, value)
    page.click("#measure-start")
    page.wait_for_selector("#measure-stop")
    page.wait_for_selector("#measure-stop", state="hidden", timeout=300_000)
    photograph(page, folder, "4-measure")
    models_tab(page)
    page.wait_for_selector("#report table")
    photograph(page, folder, "5-models")


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    with TemporaryDirectory() as elsewhere, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=installed(), args=FLAGS)
        page = browser.new_page(viewport=SIZES[0])
        watch(page)
        with started(Path(elsewhere), "-m", "specdemo", "serve") as app:
            page.goto(app.url)
            take(page, folder)
        browser.close()


if __name__ == "__main__":
    main()
