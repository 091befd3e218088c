"""What the server's memory grows by with its visitors, who each load the page as a browser does.

    python -m tests.benchmarks.visitors [--visitors 2000] [--steps 10] [--sessions 500]

Serves the page on a scripted engine, on this machine alone, and prints one line of JSON: resident MB of the server
after each step, and MB a visitor over the second half, when Gradio keeps no more of them than it may.
"""

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil

from specdemo.ui.page import SESSIONS
from tests.support.browser import started
from tests.support.served import Served, Visitor

AT_ONCE = 4


def measure(visitors: int, steps: int, sessions: int) -> list[float]:
    """Resident MB of the server before the first visitors, and after each step."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        with (
            started(folder, "-m", "tests.support.served", folder, str(sessions)) as app,
            httpx.Client(base_url=app.url, timeout=120) as http,
            ThreadPoolExecutor(AT_ONCE) as pool,
        ):
            server, page = psutil.Process(app.process.pid), Served(http)
            Visitor(page).opens()  # what is made once
            resident = [server.memory_info().rss / 1e6]
            for _ in range(steps):
                for told in pool.map(lambda _: Visitor(page).opens(), range(visitors // steps)):
                    assert told["success"], told
                resident.append(server.memory_info().rss / 1e6)
            return resident


def growth(resident: list[float], visitors: int) -> float:
    """MB a visitor over the second half of the steps."""
    half = len(resident) // 2
    return (resident[-1] - resident[half]) / (visitors * (len(resident) - 1 - half) / (len(resident) - 1))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visitors", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="visitors whose state is kept")
    options = parser.parse_args()
    resident = measure(options.visitors, options.steps, options.sessions)
    found = {
        "visitors": options.visitors,
        "sessions": options.sessions,
        "resident_mb": [round(size) for size in resident],
        "mb_per_visitor": round(growth(resident, options.visitors), 4),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
