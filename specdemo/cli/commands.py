"""The parser of all commands."""

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from specdemo.cli import code, compare, experiments, models, serve, train

_LONGEST = 400


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; options for settings come from the settings types."""
    called = "specdemo" if Path(sys.argv[0]).stem == "specdemo" else "python -m specdemo"
    parser = _Parser(prog=called, description="Does speculative decoding pay off here?")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (compare, experiments, code, models, train, serve):
        command.add_to(commands)
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """End with one sentence, without the usage, and without all of a long argument that it repeats."""
        half = _LONGEST // 2
        short = message if len(message) <= _LONGEST else f"{message[:half]} … {message[-half:]}"
        if short.endswith("required: PROMPT"):
            short = f'Give a prompt, such as: {self.prog} "Once upon a time"'
        self.exit(2, f"specdemo: {short[:1].upper()}{short[1:]}; {self.prog} --help lists what there is.\n")
