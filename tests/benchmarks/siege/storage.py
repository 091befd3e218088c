"""Browsers whose storage holds anything: the page works, and says nothing to the console."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from playwright.sync_api import Error, sync_playwright

from tests.benchmarks.siege.tally import Tally
from tests.support.browser import BRIEF, FLAGS, installed

KEYS = ("specdemo-runs", "specdemo-chat", "specdemo", "specdemo-pair")
VALUES = ("x", '"x"', "[1,2,3]", "{}", "null", "[[]]", '{"a":' * 100, "9" * 400, '[{"run":"a"}]', "")
_PATIENCE = 120_000  # milliseconds: other work may have the machine
_SCRIPT = """
for (const [key, value] of Object.entries(VALUES))
    for (const storage of [localStorage, sessionStorage])
        if (storage.getItem(key) === null) storage.setItem(key, value);
"""


def _note(errors: list[Error], error: Error) -> None:
    errors.append(error)


def loaded(url: str, times: int) -> Tally:
    """Load the page so many times with something else in the browser's storage; without a browser, never."""
    path = installed()
    if not times or path is None:
        return Tally()
    with ThreadPoolExecutor(1) as apart:  # Playwright runs once in a thread, and tests may have it in theirs
        return apart.submit(_loaded, url, times, path).result()


def _loaded(url: str, times: int, path: str) -> Tally:
    tally = Tally()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        for number in range(times):
            context = browser.new_context()
            context.set_default_timeout(_PATIENCE)
            values = {key: VALUES[(number + index) % len(VALUES)] for index, key in enumerate(KEYS)}
            context.add_init_script(_SCRIPT.replace("VALUES", json.dumps(values)))
            page, errors = context.new_page(), list[Error]()
            page.on("pageerror", partial(_note, errors))
            try:
                page.goto(url + BRIEF)
                page.wait_for_selector("#run:not([disabled])")
            except Error as error:
                errors.append(error)
            for fault in errors:
                print(f"with {values}: {fault}", file=sys.stderr)
            tally.tried += 1
            tally.answered += not errors
            tally.unexplained += bool(errors)
            context.close()
        browser.close()
    return tally
