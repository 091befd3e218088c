import argparse
import sys
from pathlib import Path
from typing import NoReturn

from specdemo.cli import compare, doctor, measure, models, serve
from specdemo.engines import load_engine
from specdemo.errors import capitalised
from specdemo.racing.worker import EngineFactory
from specdemo.version import __version__


def build_parser(load: EngineFactory = load_engine) -> argparse.ArgumentParser:
    program = "specdemo" if Path(sys.argv[0]).stem == "specdemo" else "python -m specdemo"
    parser = Parser(
        prog=program,
        usage=f"{program} [--log-level LEVEL] COMMAND [OPTION …]",
        description="Does speculative decoding pay off here?",
        epilog="COMMAND --help lists its options. Exit codes: 0 success, 1 a run or file failed, 2 bad usage, "
        "130 Ctrl+C or SIGTERM, after which results so far were printed and written.",
    )
    parser.set_defaults(load_engine=load)
    parser.add_argument("--version", action="version", version=f"specdemo {__version__}")
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="warning",
        help="what is logged to standard error; debug: also tracebacks of every error (default: warning)",
    )
    commands = parser.add_subparsers(prog=program, required=True, metavar="COMMAND", title="commands")
    for command in (serve, compare, measure, models, doctor):
        command.add_to(commands)
    return parser


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with one sentence instead of the usage."""
        if message.endswith("required: PROMPT"):
            message = f'Give a prompt, such as: {self.prog} "Once upon a time"'
        self.exit(2, f"specdemo: {capitalised(message)}; {self.prog} --help lists all options.\n")
