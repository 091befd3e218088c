"""The terminal: one module per command. Exit codes: 0 success, 1 failed run, 2 bad usage, 130 Ctrl+C or SIGTERM."""

import errno
import io
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdemo.cli.signals import importing
from specdemo.errors import SpecdemoError, UsageError, quoted
from specdemo.text import printable

if TYPE_CHECKING:
    from specdemo.racing.worker import EngineFactory  # imports openvino

_UNWRITTEN = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EPIPE, errno.EIO}  # of standard output


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
    except UsageError as error:
        return _print_error(error, 2)
    except SpecdemoError as error:
        return _print_error(error, 1)
    except KeyboardInterrupt:
        return 130
    except OSError as error:  # a path is too long or not accessible, or the output cannot be written
        if error.filename is not None:
            name = quoted(str(error.filename))
            return _print_error(SpecdemoError(f"Cannot use {name} ({error.strerror}); choose another path."), 1)
        if error.errno not in _UNWRITTEN:
            return _print_error(SpecdemoError.of(error, "The command failed", "see the reason below"), 1)
        return _print_error(_output_error(error), 1)
    return 0


def _output_error(error: OSError) -> SpecdemoError:
    """Discard further output, and return the error to report."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())  # otherwise Python complains again at exit
    return SpecdemoError(f"Cannot write the output ({error.strerror}); send it elsewhere.")


def _print_error(error: SpecdemoError, code: int) -> int:
    print(f"specdemo: {printable(str(error))}", file=sys.stderr)
    for line in printable(error.cause, lines=True).splitlines():
        print(f"  {line}", file=sys.stderr)
    logging.getLogger("specdemo").debug("%s", error.trace)
    return code
