"""The terminal: one module per command. Exit codes: 0 success, 1 failed run, 2 bad usage, 130 Ctrl+C or SIGTERM."""

import errno
import io
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdemo.cli.signals import importing, interrupted
from specdemo.errors import SpecdemoError, UsageError, quoted
from specdemo.text import printable

if TYPE_CHECKING:
    from specdemo.racing.worker import EngineFactory  # imports openvino

_OUTPUT_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EPIPE, errno.EIO}  # of standard output


def main(arguments: Sequence[str] | None = None, *, load: "EngineFactory | None" = None) -> int:
    """Run one command and return its exit code; tests replace `load`."""
    loader: dict[str, Any] = {} if load is None else {"load": load}
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="replace")  # such as a pipe on Windows, whose encoding has no τ
    try:
        try:
            with importing():
                from specdemo.cli.commands import build_parser  # openvino takes a second to import
            parser = build_parser(**loader)
            options = parser.parse_args(arguments)
            logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", force=True)
            logging.getLogger("specdemo").setLevel(options.log_level.upper())
            options.command(options)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # raises if it cannot be written
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if interrupted.is_set():  # while a library was imported, for example
            return 130
        if isinstance(error, SpecdemoError):
            return _print_error(error, 2 if isinstance(error, UsageError) else 1)
        if not isinstance(error, OSError):
            raise
        return _print_error(_system_error(error), 1)
    return 0


def _system_error(error: OSError) -> SpecdemoError:
    """Return the error to report, and discard further output if it cannot be written."""
    if error.filename is not None:  # a path is too long or not accessible
        return SpecdemoError(f"Cannot use {quoted(str(error.filename))} ({error.strerror}); choose another path.")
    if error.errno not in _OUTPUT_ERRORS:
        return SpecdemoError.of(error, "The system refused an operation", "see the reason below")
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())  # otherwise Python complains again at exit
    return SpecdemoError(f"Cannot write the output ({error.strerror}); send it elsewhere.")


def _print_error(error: SpecdemoError, code: int) -> int:
    print(f"specdemo: {printable(str(error))}", file=sys.stderr)
    for line in printable(error.cause, lines=True).splitlines():
        print(f"  {line}", file=sys.stderr)
    logging.getLogger("specdemo").debug("%s", error.trace)
    return code
