"""Provokes errors and prints what people are told, with the cause below each.

python -m tests.support.causes
"""

import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from specdemo.child import Failure, Limits, result_of, run_limited
from specdemo.engines.base import Engine
from specdemo.errors import FileError, SpecdemoError
from specdemo.models.pairs import PAIR_VARIABLE, bundled_pair
from specdemo.records import ModelPair, Slice
from specdemo.settings import GenerationSettings
from specdemo.strategies import EngineName
from specdemo.worker import Worker
from tests.support import scripted_app

ROOT = Path(__file__).resolve().parents[2]
COMPARE = ["compare", "Once upon a time", "--repeats", "0", "--max-new-tokens", "8"]
MB = 2**20


def limit(what: int, value: int) -> None:
    resource.setrlimit(what, (value, value))


def told(arguments: list[str], restrict: Callable[[], None], folder: Path) -> str:
    """The last lines of a command under limits, and its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "specdemo", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), PAIR_VARIABLE: "story-pair"},
        preexec_fn=restrict,
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = done.stderr.splitlines()
    said = [index for index, line in enumerate(lines) if line.startswith("specdemo: ") and line.endswith(".")]
    return "\n".join([*lines[said[-1] if said else -3 :], f"(exit code {done.returncode})"])


def broken(number: signal.Signals) -> str:
    """What is told when the engine's process gets this signal in the midst of a race."""
    worker = Worker(scripted_app.load)
    try:
        for event in worker.compare(bundled_pair(), "Say", GenerationSettings(max_new_tokens=2000, ignore_eos=True)):
            if isinstance(event, Slice):
                os.kill(worker.process_id, number)
    except SpecdemoError as error:
        return shown(error)
    finally:
        worker.close()
    return "nothing was told"


def faulty(name: EngineName, pair: ModelPair) -> Engine:
    return [][1]


def unforeseen() -> str:
    worker = Worker(faulty)
    try:
        list(worker.compare(bundled_pair(), "Say", GenerationSettings()))
    except SpecdemoError as error:
        return shown(error)
    finally:
        worker.close()
    return "nothing was told"


def fills() -> int:
    return len([bytes(MB) for _ in range(4096)])


def burns() -> int:
    while True:
        pass


def waits() -> int:
    signal.pause()
    return 0


def ends() -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def isolated(work: Callable[[], int]) -> str:
    failure = Failure(FileError, "This run cannot be drawn", "share it as JSON")
    try:
        result_of(run_limited(work, name="work", failure=failure, limits=Limits(200 * MB, 1, 15.0)))
    except SpecdemoError as error:
        return shown(error)
    return "nothing was told"


def shown(error: SpecdemoError) -> str:
    return "\n".join([str(error), *(f"  {line}" for line in error.cause.splitlines())])


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "o.json").write_text("{}")
        command = partial(told, folder=folder)
        nothing, traced = (lambda: None), [*COMPARE, "--engine", "traced"]
        cases: dict[str, Callable[[], str]] = {
            **{
                f"ulimit -n {most}": partial(command, COMPARE, partial(limit, resource.RLIMIT_NOFILE, most))
                for most in (6, 8)
            },
            **{
                f"{size} MB of address space{' (traced)' * (line is traced)}": partial(
                    command, line, partial(limit, resource.RLIMIT_AS, size * MB)
                )
                for line, size in ((COMPARE, 1200), (COMPARE, 1600), (traced, 1200), (traced, 1600))
            },
            "no file above 4 kB": partial(
                command, [*COMPARE, "--json", "o.json"], partial(limit, resource.RLIMIT_FSIZE, 4096)
            ),
            "a full disk": partial(command, [*COMPARE, "--json", "/dev/full"], nothing),
            "no such server": partial(command, [*COMPARE[:2], "--url", "http://127.0.0.1:9"], nothing),
            **{f"engine: {number.name}": partial(broken, number) for number in SIGNALS},
            "engine: an exception nobody foresaw": unforeseen,
            "file: more memory than allowed": partial(isolated, fills),
            "file: more processor time than allowed": partial(isolated, burns),
            "file: more time than allowed": partial(isolated, waits),
            "file: SIGKILL": partial(isolated, ends),
        }
        for case, provoke in cases.items():
            print(f"--- {case}\n{provoke()}", flush=True)
        print("--- the file that existed\n" + (folder / "o.json").read_text())


SIGNALS = (
    signal.SIGKILL,
    signal.SIGSEGV,
    signal.SIGFPE,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGILL,
    signal.SIGTERM,
)

if __name__ == "__main__":
    main()
