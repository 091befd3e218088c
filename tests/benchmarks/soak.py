"""Use the page of the default pair in a browser for a while: runs, Stop, reload, Find, and opened files.

    python -m tests.benchmarks.soak [--minutes 15]

Prints the most memory, descriptors and threads of server and engine, and temporary files, in the cycles of each half
but the first ones, as one line of JSON. Exits with 1 if descriptors or threads grew, memory by 10 %, a file was left
at the end, or something was logged. Uploads are kept for an hour, 100 at most, and the sessions of 200 reloads, of
2 MB each.
"""

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep

import psutil
from playwright.sync_api import Page, expect, sync_playwright

from specdemo.exports import schema
from specdemo.ui.server import SESSIONS
from tests.support.browser import FLAGS, WAIT, App, installed, messages, open_tab, run, start, started
from tests.support.proposals import compared

WARM_CYCLES = 3  # after which everything was used once
# with a run, a search and an opened file; without reloads, 15 cycles added 1 MB in all (29 November 2026), and of 800
# sessions only the first 200 added memory
SESSION_MB = 2.1
# of memory, from half to half: the engine's moves by a fifth from cycle to cycle, since Find compiles passes of each
# lookahead until it is stopped, and texts stay cached
GROWTH = 1.10


def state(app: App, temporary: Path) -> dict[str, float]:
    found = {"temporary_files": float(sum(path.is_file() for path in temporary.rglob("*")))}
    for name, process in (("server", psutil.Process(app.process.pid)), ("engine", app.engine())):
        found |= {f"{name}_mb": process.memory_info().rss / 1e6, f"{name}_descriptors": float(process.num_fds())}
        found[f"{name}_threads"] = float(process.num_threads())
    return found


def cycle(page: Page, saved: Path) -> None:
    run(page)
    start(page)
    page.click("#stop")
    expect(page.locator("#run")).to_have_text("Run")
    page.click("#open-finding button")
    page.click("#find")
    expect(page.locator("#stop-find")).to_be_visible()
    sleep(3)
    page.click("#stop-find")
    expect(page.locator("#find")).to_be_enabled()
    open_tab(page, "Anatomy")
    page.set_input_files("#open input, input[type=file]", saved)
    expect(page.locator(".so-far .prompt")).to_have_text("Say")
    open_tab(page, "Compare")
    page.reload()
    expect(page.locator("#run")).to_be_enabled()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0)
    until = monotonic() + 60 * parser.parse_args().minutes
    with TemporaryDirectory() as name, sync_playwright() as playwright:
        folder, log, cycles = Path(name), Path(name, "log"), 0
        (temporary := folder / "tmp").mkdir()
        (saved := folder / "race.json").write_text(json.dumps(schema.to_json(compared())))
        with started(folder, "-m", "specdemo", "serve", log=log, TMPDIR=str(temporary)) as app:
            page = playwright.chromium.launch(executable_path=installed(), args=FLAGS).new_page()
            page.set_default_timeout(WAIT)
            page.goto(f"{app.url}/?max_new_tokens=256&ignore_eos=true")  # long enough to be stopped
            expect(page.locator("#run")).to_be_enabled()
            states = list[dict[str, float]]()
            while monotonic() < until or len(states) < 2:
                try:
                    cycle(page, saved)
                except Exception:
                    print(f"cycle {cycles}: {messages(page)}\n{log.read_text()}", file=sys.stderr)
                    raise
                cycles += 1
                if cycles > WARM_CYCLES:
                    states.append(state(app, temporary))
        said = [line for line in log.read_text().splitlines() if line and not line.startswith("The page is at")]
        left = sum(path.is_file() for path in temporary.rglob("*"))
    half = len(states) // 2
    before, after = (
        {name: max(each[name] for each in part) for name in part[0]} for part in (states[:half], states[half:])
    )
    print(json.dumps({"cycles": cycles, "before": before, "after": after, "left": left, "logged": said[:20]}))
    after["server_mb"] -= SESSION_MB * min(len(states) - half, SESSIONS)
    grown = [name for name, value in after.items() if name != "temporary_files" and value > before[name] * GROWTH + 1]
    return 1 if grown or said or left else 0


if __name__ == "__main__":
    sys.exit(main())
