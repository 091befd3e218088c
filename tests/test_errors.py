"""Errors: their message, the advice that fits the cause, and the cause's own words."""

import logging
import os
import pickle

import pytest

from specdemo.errors import FileError, LoadError, SpecdemoError


def failed(error: BaseException) -> SpecdemoError:
    return LoadError.of(error, "OpenVINO cannot load 'draft'", "export it again")


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (RuntimeError("Unsupported operation: Foo"), "OpenVINO cannot load 'draft'; export it again."),
        (MemoryError("std::bad_alloc"), "'draft': there is not enough memory; free some"),
        (RuntimeError("Check 'p' failed: Couldn't allocate 12 bytes"), "there is not enough memory"),
        (RuntimeError("Resource temporarily unavailable"), "refuses another thread, or more memory"),
        (OSError(24, "Too many open files"), "no more files; raise the limit, as with ulimit -n 1024"),
        (OSError(28, "No space left on device"), "the disk is full; free some space"),
    ],
)
def test_the_advice_follows_from_the_cause(error: BaseException, advice: str) -> None:
    assert advice in str(failed(error))


def test_cause_and_traceback_survive_pickling(caplog: pytest.LogCaptureFixture) -> None:
    try:
        try:
            raise OSError(2, os.strerror(2), "model.bin")
        except OSError as error:
            raise RuntimeError("Exception from core.cpp:99") from error
    except RuntimeError as error:
        ours = failed(error)
        ours.__cause__ = error
    arrived = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(ours))))
    assert str(arrived) == str(ours)
    assert type(arrived) is LoadError
    assert arrived.cause == ours.cause
    assert "RuntimeError: Exception from core.cpp:99\nFileNotFoundError: [Errno 2]" in arrived.cause
    with caplog.at_level(logging.INFO, "specdemo"):
        arrived.log()
        arrived.log()
        FileError("'x' is no file; choose another.").log()  # only the request was wrong
    (logged,) = caplog.records
    assert "Traceback" in logged.message
    assert "model.bin" in logged.message
