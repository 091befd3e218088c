"""`python -m tests.support.causes` provokes errors and prints what people are told, with the cause below each."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from specdemo.capabilities import EngineName
from specdemo.engines.base import Engine
from specdemo.errors import SpecdemoError
from specdemo.models.catalogue import PAIR_VARIABLE, bundled_pair
from specdemo.racing.worker import EngineFactory, Worker
from specdemo.records import ModelPair, Slice
from specdemo.settings import GenerationSettings
from tests.support import scripted_app

ROOT = Path(__file__).resolve().parents[2]
COMPARE = ["compare", "Once upon a time", "--repeats", "0", "--max-new-tokens", "8"]
MB = 2**20


def limit(what: int, value: int) -> None:
    resource.setrlimit(what, (value, value))


def told(arguments: list[str], folder: Path, restrict: Callable[[], None] = lambda: None) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), PAIR_VARIABLE: "story-pair"}
    command = [sys.executable, "-m", "specdemo", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, preexec_fn=restrict, capture_output=True, text=True, timeout=300
    )
    lines = done.stderr.splitlines()
    said = [index for index, line in enumerate(lines) if line.startswith("specdemo: ") and line.endswith(".")]
    return "\n".join([*lines[said[-1] if said else -3 :], f"(exit code {done.returncode})"])


def broken(engine: EngineFactory, number: signal.Signals | None = None) -> str:
    """As the engine's process fails, or gets this signal in the midst of a race."""
    worker = Worker(engine)
    try:
        for event in worker.compare(bundled_pair(), "Say", GenerationSettings(max_new_tokens=2000, ignore_eos=True)):
            if isinstance(event, Slice) and number is not None:
                os.kill(worker.process_id, number)
    except SpecdemoError as error:
        return shown(error)
    finally:
        worker.close()
    return "nothing was told"


def faulty(name: EngineName, pair: ModelPair) -> Engine:
    return [][1]


def shown(error: SpecdemoError) -> str:
    return "\n".join([str(error), *(f"  {line}" for line in error.cause.splitlines())])


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "o.json").write_text("{}")
        traced, json = [*COMPARE, "--engine", "traced"], [*COMPARE, "--json"]
        limits = {f"ulimit -n {most}": (COMPARE, resource.RLIMIT_NOFILE, most) for most in (6, 8)}
        for size in (1200, 1600):
            limits[f"{size} MB of address space"] = (COMPARE, resource.RLIMIT_AS, size * MB)
            limits[f"{size} MB of address space (traced)"] = (traced, resource.RLIMIT_AS, size * MB)
        limits["no file above 4 kB"] = ([*json, "o.json"], resource.RLIMIT_FSIZE, 4096)
        cases: dict[str, Callable[[], str]] = {
            **{name: partial(told, line, folder, partial(limit, *most)) for name, (line, *most) in limits.items()},
            "a full disk": partial(told, [*json, "/dev/full"], folder),
            "no such server": partial(told, [*COMPARE[:2], "--url", "http://127.0.0.1:9"], folder),
            **{f"engine: {number.name}": partial(broken, scripted_app.load, number) for number in SIGNALS},
            "engine: an exception nobody foresaw": partial(broken, faulty),
        }
        for case, provoke in cases.items():
            print(f"--- {case}\n{provoke()}", flush=True)
        print("--- the file that existed\n" + (folder / "o.json").read_text())


SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGTERM)

if __name__ == "__main__":
    main()
