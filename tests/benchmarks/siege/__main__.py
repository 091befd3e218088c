"""An hour of a hostile evening: everything that a visitor, a file or an accident may do to the app, counted.

    python -m tests.benchmarks.siege [--clients 50] [--requests 2000] [--floods 200] [--files 3000] [--headers 3000]
                                     [--servers 72] [--kills 3] [--stops 2] [--dropped 50] [--storage 10]
                                     [--runs 500] [--switches 20] [--seed 0]

The app runs on this machine's loopback address on scripted engines; only growth is measured on the bundled pair. It
prints one line of JSON, and ends with 1 if anything happened that must not: an attempt neither answered nor refused
in a sentence, a traceback, somebody else's answer, a lost row of a benchmark, memory that grew by 5 %, a server or an
engine of 1.5 GB, or a front page that took 2 seconds.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from tests.benchmarks.siege import engines, files, floods, servers, storage, visitors
from tests.benchmarks.siege.sentry import watched
from tests.benchmarks.siege.tally import Tally
from tests.support.browser import started

MOST_GROWTH = 0.05
MOST_BYTES = 1.5e9
MOST_SILENCE = 2.0
_COUNTS = {
    "clients": 50,
    "requests": 2000,
    "floods": 200,
    "files": 3000,
    "headers": 3000,
    "servers": 72,
    "kills": 3,
    "stops": 2,
    "dropped": 50,
    "storage": 10,
    "runs": 500,
    "switches": 20,
}


def besieged(counts: dict[str, int], seed: int, folder: Path) -> Tally:
    """All parts with these counts; the folder is for files."""
    tally, log = Tally(), folder / "log"
    (folder / "models").mkdir()
    arguments = ("-m", "tests.support.scripted_app", folder / "models")
    with started(folder, *arguments, log=log, SPACE_ID="somebody/specdemo") as app:
        with watched(app, tally):
            _add(tally, partial(visitors.crowd, app.url, counts["clients"]))
            _add(tally, partial(visitors.fuzz, app.url, counts["requests"], seed))
            _add(tally, partial(floods.flood, app.url, counts["floods"]))
            _add(tally, partial(visitors.deserters, app.url, counts["dropped"]))
        _add(tally, partial(storage.loaded, app.url, counts["storage"]))
    said = log.read_text(encoding="utf-8", errors="replace")
    tracebacks = said.count("Traceback (most recent call last)")
    if tracebacks:
        print(said, file=sys.stderr)
    tally.tracebacks += tracebacks
    _add(tally, partial(files.mutated, counts["files"], seed, folder))
    _add(tally, partial(files.headers, counts["headers"], seed, folder))
    _add(tally, partial(servers.asked, counts["servers"]))
    _add(tally, partial(engines.kills, counts["kills"]))
    _add(tally, partial(engines.stops, counts["stops"]))
    _add(tally, partial(engines.killed_benchmarks, counts["kills"], folder))
    _add(tally, partial(engines.growth, counts["runs"], counts["switches"]))
    return tally


def _add(tally: Tally, part: "partial[Tally]") -> None:
    """Add what comes of a part, and say how long it took."""
    began = monotonic()
    found = part()
    tally.add(found)
    print(f"{part.func.__name__}: {found.tried} tried in {monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Lay siege, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, count in _COUNTS.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    counts = vars(parser.parse_args(arguments))
    seed, began = counts.pop("seed"), monotonic()
    with TemporaryDirectory() as folder:
        tally = besieged(counts, seed, Path(folder))
    print(json.dumps(asdict(tally) | {"growth": round(tally.growth, 4), "seconds": round(monotonic() - began)}))
    small = max(tally.server_bytes, tally.engine_bytes) < MOST_BYTES and tally.growth < MOST_GROWTH
    return 0 if tally.held and small and tally.silence < MOST_SILENCE else 1


if __name__ == "__main__":
    sys.exit(main())
