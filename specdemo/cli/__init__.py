"""The terminal: the page's features as commands, one module each.

Exit codes: 0, 2 for bad usage, 1 for a run that failed.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from specdemo.cli import bench, compare, models, serve, sweep
from specdemo.errors import SpecdemoError, UsageError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    options = build_parser().parse_args(arguments)
    try:
        options.command(options)
    except UsageError as error:
        return _complain(error, 2)
    except SpecdemoError as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        return 130
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; options for settings come from the settings types."""
    called = "specdemo" if Path(sys.argv[0]).stem == "specdemo" else "python -m specdemo"
    parser = argparse.ArgumentParser(prog=called, description="Does speculative decoding pay off here?")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (compare, sweep, bench, models, serve):
        command.add_to(commands)
    return parser


def _complain(error: SpecdemoError, code: int) -> int:
    print(f"specdemo: {error}", file=sys.stderr)
    return code
