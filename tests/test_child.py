"""Child processes: what they say, how they end, and that none is left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from time import monotonic, sleep

import psutil
import pytest

from specdemo.child import follow
from specdemo.errors import FetchError, NetworkError

DIED = NetworkError("It ended; try again.")
Work = Callable[..., Iterator[int]]


def numbers(count: int) -> Iterator[int]:
    yield from range(count)


def refuses() -> Iterator[int]:
    yield 1
    raise FetchError("It cannot be had; ask another.")


def stumbles() -> Iterator[int]:
    yield 1
    raise ZeroDivisionError


def is_killed() -> Iterator[int]:
    yield 1
    os.kill(os.getpid(), signal.SIGKILL)


def sleeps() -> Iterator[int]:
    yield os.getpid()
    sleep(3600)


def grandchild() -> Iterator[int]:
    yield from follow(sleeps, name="grandchild", died=DIED)


def heard(work: Work, *arguments: object) -> list[int]:
    return [message for message in follow(work, *arguments, name="child", died=DIED) if message is not None]


def gone(process_id: int) -> bool:
    """Whether the process ends within seconds."""
    until = monotonic() + 10
    while psutil.pid_exists(process_id) and psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE:
        if monotonic() > until:
            return False
        sleep(0.05)
    return True


def test_what_the_work_yields_arrives_in_its_order() -> None:
    assert heard(numbers, 5) == [0, 1, 2, 3, 4]


def test_an_error_of_the_work_is_raised_here() -> None:
    with pytest.raises(FetchError, match="ask another"):
        heard(refuses)


@pytest.mark.parametrize("work", [stumbles, is_killed])
def test_a_child_that_ends_before_its_work_is_reported(work: Work) -> None:
    with pytest.raises(NetworkError, match="It ended"):
        heard(work)


def test_silence_is_told_and_stop_ends_the_child() -> None:
    seen: list[int | None] = []

    def heard_and_then_silence() -> bool:
        return any(seen) and seen[-1] is None

    seen.extend(follow(sleeps, name="child", died=DIED, stop=heard_and_then_silence, poll_seconds=0.05))
    assert gone(next(filter(None, seen)))


def test_whoever_leaves_ends_the_child_and_its_children() -> None:
    with closing(follow(grandchild, name="child", died=DIED)) as messages:
        process_id = next(message for message in messages if message is not None)
        assert psutil.pid_exists(process_id)
    assert gone(process_id)


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit()"])
def test_no_child_outlives_its_parent(end: str) -> None:
    program = (
        "import os, signal, sys; from specdemo.child import follow; from tests.test_child import DIED, sleeps\n"
        "messages = follow(sleeps, name='child', died=DIED)\n"
        f"print(next(m for m in messages if m is not None), flush=True)\n{end}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert gone(int(done.stdout))
