"""How long a visitor waits between the click on Run and the first token, in a browser.

    python -m tests.benchmarks.first_token [--idle 3 3 3 70 70] [--read 20] [--prompt TEXT]

Starts the page on the default pair, opens it and, after so many seconds of reading, clicks: the first click of a
fresh process. Further clicks follow, each so many seconds after the run before was over. Prints for each the
milliseconds until each side's first token stands in its pane. Run it on a quiet machine; the browser computes beside
the engine, as a visitor's does.
"""

import argparse
import tempfile
from pathlib import Path
from time import monotonic, sleep

from playwright.sync_api import Page, sync_playwright

from specdemo.models.machine import instruction_sets
from tests.support.browser import FLAGS, installed, started

_CLICK = """() => {
    const seen = window.firstTokens = {};
    document.querySelectorAll('.pane .text [data-index]').forEach((token) => token.remove());
    const clicked = performance.now();
    document.querySelector('#run').click();
    const look = () => {
        for (const side of ['plain', 'speculative']) {
            if (!(side in seen) && document.querySelector(`.pane.${side} .text [data-index]`)) {
                seen[side] = Math.round(performance.now() - clicked);
            }
        }
        if (Object.keys(seen).length < 2) requestAnimationFrame(look);
    };
    look();
}"""


def first_tokens(page: Page) -> dict[str, int]:
    """Click Run; milliseconds until each side's first token. Returns once the run is over."""
    page.evaluate(_CLICK)
    page.wait_for_function("Object.keys(window.firstTokens).length === 2", timeout=120_000)
    found: dict[str, int] = page.evaluate("window.firstTokens")
    page.wait_for_selector(".race[data-state=done]", timeout=300_000)
    page.wait_for_function("document.querySelector('#run').textContent.trim() === 'Run'")
    return found


def main() -> None:
    """Click and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", type=float, nargs="*", default=[3, 3, 3, 70, 70], help="seconds before each click")
    parser.add_argument("--read", type=float, default=20, help="seconds between opening the page and the first click")
    parser.add_argument("--prompt", help="instead of the page's first")
    arguments = parser.parse_args()
    print(", ".join(instruction_sets()))
    with (
        tempfile.TemporaryDirectory() as folder,
        started(Path(folder), "-m", "specdemo", "serve") as app,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=installed(), args=FLAGS)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(app.url)
        opened = monotonic()
        page.wait_for_selector("#run:not([disabled])")
        for count, idle in enumerate([arguments.read, *arguments.idle]):
            sleep(max(idle - (0 if count else monotonic() - opened), 0))
            page.focus("#prompt textarea")
            if arguments.prompt:
                page.fill("#prompt textarea", arguments.prompt)
            what = f"first click, {idle:g} s after opening" if not count else f"{idle:g} s after the last run"
            found = first_tokens(page)
            print(f"{what}: {found['plain']} ms plain, {found['speculative']} ms speculative", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
