"""What sharing the machine costs each side's clock, and what streaming to a page costs both.

    python -m tests.benchmarks.clocks slicing|streaming [--tokens 1000] [--repeats 15]

Prints ratios of seconds per token, measured in turns within one run of this script:

- sliced / alone: the race's clocks against those of each side on its own;
- streamed / unwatched: the same race while its updates go to a browser on this machine that draws nothing;
- drawn / unwatched: the same while that browser shows it, which takes what a browser takes.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from random import sample
from statistics import quantiles
from typing import Any

from playwright.sync_api import Page, sync_playwright

from specdemo import metrics
from specdemo.engines import load_engine
from specdemo.engines.genai import GenAIEngine
from specdemo.measure.race import RaceEvent, race, run_alone
from specdemo.models.pairs import bundled_pair
from specdemo.records import Comparison, Request, Run, Side
from specdemo.settings import GenerationSettings
from specdemo.ui.page import build_page, launch_options
from specdemo.worker import Prepare, Worker
from tests.support.browser import installed

PROMPT = "Once upon a time there was a fox who"
SIDES: tuple[Side, Side] = ("plain", "speculative")


def seconds_per_token(run: Run) -> float:
    """Of a run that decoded something."""
    seconds = metrics.time_per_token(run)
    assert seconds is not None
    return seconds


def last(events: Iterable[RaceEvent]) -> Comparison:
    """The comparison at the end of a race."""
    *_, comparison = events
    assert isinstance(comparison, Comparison)
    return comparison


def report(name: str, ratios: list[float], target: float | None = None) -> None:
    """Median ratio, quartiles, and whether the median meets the target."""
    low, middle, high = quantiles(ratios, n=4)
    outcome = "" if target is None else f"   at most {target:.2f}: {'met' if middle <= target else 'missed'}"
    print(f"{name:<36} {middle:.3f}   quartiles {low:.3f} … {high:.3f}{outcome}", flush=True)


def apart(module: str, *arguments: object, **environment: str) -> Any:
    """What one of these benchmarks prints as JSON, run with --measure in a process of its own."""
    command = [sys.executable, "-m", f"tests.benchmarks.{module}", "--measure", *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | environment)
    return json.loads(done.stdout)


def slicing(settings: GenerationSettings, repeats: int) -> None:
    """Sliced clocks against undisturbed ones."""
    engine = GenAIEngine(bundled_pair())
    request = Request.of(PROMPT, settings)
    requests = {"plain": request.plain, "speculative": request}
    ratios: dict[Side, list[float]] = {side: [] for side in SIDES}
    for _ in range(repeats):
        alone = {side: seconds_per_token(run_alone(engine.decoder(requests[side]))) for side in SIDES}
        comparison = last(race(engine, PROMPT, settings))
        for side in SIDES:
            ratios[side].append(seconds_per_token(comparison.side(side)) / alone[side])
    for side in SIDES:
        report(f"{side}: sliced / alone", ratios[side], 1.05)
    engine.close()


class RecordingWorker(Worker):
    """A worker that remembers its last comparison, which a page that draws nothing cannot hand over."""

    last: Comparison

    def compare(self, *arguments: Any) -> Iterator[RaceEvent | None]:
        """What `Worker.compare` yields."""
        for progress in super().compare(*arguments):
            if isinstance(progress, Comparison):
                self.last = progress
            yield progress


def streaming(settings: GenerationSettings, repeats: int, chromium: str) -> None:
    """The same race unwatched, streamed and drawn, in the same engine process."""
    worker = RecordingWorker(load_engine, Prepare("genai", bundled_pair()))
    app = build_page(worker, bundled_pair())
    _, url, _ = app.launch(**launch_options(), prevent_thread_lock=True, quiet=True)
    seconds: dict[tuple[str, Side], list[float]] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{url}?ignore_eos=true&max_new_tokens={settings.max_new_tokens}")
        page.wait_for_selector("#run:not([disabled])")
        page.wait_for_function("document.querySelector('.chart.clock')?.data !== undefined")
        page.evaluate("() => { window.draw = Race.prototype.receive; }")
        strategies: dict[str, Callable[[], object]] = {
            "unwatched": lambda: last(filter(None, worker.compare(bundled_pair(), PROMPT, settings))),
            "streamed": lambda: watch(page, "() => {}"),
            "drawn": lambda: watch(page, "window.draw"),
        }
        for _ in range(repeats):
            for strategy in sample(sorted(strategies), len(strategies)):
                strategies[strategy]()
                for side in SIDES:
                    seconds.setdefault((strategy, side), []).append(seconds_per_token(worker.last.side(side)))
        browser.close()
    for strategy, target in (("streamed", 1.03), ("drawn", None)):
        for side in SIDES:
            pairs = zip(seconds[strategy, side], seconds["unwatched", side], strict=True)
            report(f"{side}: {strategy} / unwatched", [watched / unwatched for watched, unwatched in pairs], target)
    app.close()
    worker.close()


def watch(page: Page, receive: str) -> None:
    """Run on the page, whose updates go to this function, and wait for the end."""
    page.evaluate(f"() => {{ Race.prototype.receive = {receive}; }}")
    page.click("#run")
    page.wait_for_selector("#stop", timeout=60_000)
    page.wait_for_selector("#stop", state="hidden", timeout=120_000)


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["slicing", "streaming"])
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    settings = GenerationSettings(max_new_tokens=arguments.tokens, ignore_eos=True)
    if arguments.what == "slicing":
        slicing(settings, arguments.repeats)
    elif (chromium := installed()) is not None:
        streaming(settings, arguments.repeats, chromium)
    else:
        parser.error("what streaming costs is measured in Chromium; install it")


if __name__ == "__main__":
    main()
