"""Ctrl+C and SIGTERM together with OpenVINO.

On Linux, OpenVINO 2026.4's CPU plugin registers a stack for signal handlers that, with several plugins loaded, can
stay registered after it is freed. Python runs its handlers on it, so a signal after an engine was freed would crash.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any, NoReturn

from specdemo.errors import SpecdemoError, UsageError

_SA_ONSTACK = 0x08000000


class _Action(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * (128 // ctypes.sizeof(ctypes.c_ulong))),  # 128 bytes
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def on_signal(number: signal.Signals, handler: Any) -> Any:
    """Handle a signal with this function, on the thread's own stack; return the previous handler."""
    before = signal.signal(number, handler)
    if sys.platform == "linux":
        library, action = ctypes.CDLL(None), _Action()
        if library.sigaction(number, None, ctypes.byref(action)) == 0:
            action.flags &= ~_SA_ONSTACK
            library.sigaction(number, ctypes.byref(action), None)
    return before


interrupted = Event()  # by Ctrl+C, also if it surfaces as another error


def _interrupt(*_: Any) -> NoReturn:
    interrupted.set()
    raise KeyboardInterrupt


@contextmanager
def importing() -> Iterator[None]:
    """Exit at once on Ctrl+C during imports, where it can surface as any error of the imported module.

    Libraries read the environment when they are imported; raise a UsageError if one cannot.
    """
    ours = signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_DFL, _interrupt)
    if ours:  # not ignored in the background, nor handled by other code
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        yield
    except SpecdemoError:
        raise
    except Exception as error:
        what = "A library cannot be imported in this environment"
        raise UsageError.of(error, what, "correct the variable or the installation that its error names") from error
    finally:
        if ours:
            signal.signal(signal.SIGINT, _interrupt)
