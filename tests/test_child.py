"""Child processes: their results and errors, how they end, and that none outlives its parent."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from time import monotonic, sleep
from typing import Any

import psutil
import pytest

from specdemo.child import Failure, Limits, result_of, run_child, run_limited
from specdemo.errors import FetchError

FAILURE = Failure(FetchError, "It ended", "try again")
Work = Callable[..., Iterator[int]]


def refuses() -> Iterator[int]:
    yield 1
    raise FetchError("It cannot be had; ask another.")


def stumbles() -> Iterator[int]:
    yield 1
    raise ZeroDivisionError("by hand")


def leaves() -> Iterator[int]:
    yield 1
    os._exit(3)


def is_killed() -> Iterator[int]:
    yield 1
    os.kill(os.getpid(), signal.SIGKILL)


def sleeps() -> Iterator[int]:
    yield os.getpid()
    sleep(3600)


def grandchild() -> Iterator[int]:
    yield from run_child(sleeps, name="grandchild", failure=FAILURE)


def heard(work: Work, *arguments: object) -> list[int]:
    return [message for message in run_child(work, *arguments, name="child", failure=FAILURE) if message is not None]


def gone(process_id: int) -> bool:
    until = monotonic() + 10
    while psutil.pid_exists(process_id) and psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE:
        if monotonic() > until:
            return False
        sleep(0.05)
    return True


def test_an_error_in_the_child_is_raised_in_the_parent() -> None:
    with pytest.raises(FetchError, match="ask another"):
        heard(refuses)


@pytest.mark.parametrize(
    ("work", "reason", "cause"),
    [
        (stumbles, "It ended; try again", "ZeroDivisionError: by hand"),
        (is_killed, r"it was ended by SIGKILL \(as the system does when memory runs out\); try again", ""),
        (leaves, "it ended with exit code 3; try again", ""),
    ],
)
def test_a_child_that_ends_before_its_work_is_reported_with_the_cause(work: Work, reason: str, cause: str) -> None:
    with pytest.raises(FetchError, match=reason) as failed:
        heard(work)
    assert failed.value.cause == cause
    assert failed.value.ended
    assert not cause or "in stumbles" in failed.value.trace


def test_closing_ends_the_child_and_its_children() -> None:
    with closing(run_child(grandchild, name="child", failure=FAILURE)) as messages:
        process_id = next(message for message in messages if message is not None)
        assert psutil.pid_exists(process_id)
    assert gone(process_id)


def test_no_child_outlives_its_parent() -> None:
    program = (
        "import os, signal, sys; from specdemo.child import run_child; from tests.test_child import FAILURE, sleeps\n"
        "messages = run_child(sleeps, name='child', failure=FAILURE)\n"
        "print(next(m for m in messages if m is not None), flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert gone(int(done.stdout))


def fills_memory() -> int:
    return len([bytes(2**20) for _ in range(2**10)])


def burns() -> int:
    while True:
        pass


def limited(work: Callable[..., int], *arguments: object, **limits: Any) -> int:
    return result_of(run_limited(work, *arguments, name="limited", failure=FAILURE, limits=Limits(**limits)))


def test_work_within_limits_returns_or_raises() -> None:
    assert limited(int, "42") == 42
    with pytest.raises(FetchError, match="It ended; try again") as failed:
        limited(int, "many")
    assert "invalid literal" in failed.value.cause


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limits")
def test_memory_and_processor_time_have_limits(capfd: pytest.CaptureFixture[str]) -> None:
    for work, limits, reason in (
        (fills_memory, {"memory": 2**28}, "it needed too much memory"),
        (burns, {"processor_seconds": 0}, r"SIGXCPU \(more processor time than allowed\)"),
    ):
        began = monotonic()
        with pytest.raises(FetchError, match=reason):
            limited(work, **limits)
        assert monotonic() - began < 30
    assert "Traceback" not in capfd.readouterr().err


def interrupts_itself() -> Iterator[int]:
    os.kill(os.getpid(), signal.SIGINT)
    sleep(0.2)
    yield 1


@pytest.mark.skipif(sys.platform == "win32", reason="has no such signal")
def test_ctrl_c_does_not_reach_children() -> None:
    assert heard(interrupts_itself) == [1]
