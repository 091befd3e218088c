"""`code`: settings as the few lines that reproduce them elsewhere."""

import argparse

from specdemo.cli.options import Commands, add_pair, add_settings, chosen_pair, raced_settings
from specdemo.models.checks import compared
from specdemo.presentation.code import FLAVOURS, code
from specdemo.settings import GenerationSettings


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("code", help="print what reproduces settings in other software")
    parser.set_defaults(command=_code)
    parser.add_argument("prompt", metavar="PROMPT")
    names = ", ".join(f"{name}: {software.title}" for name, software in FLAVOURS.items())
    parser.add_argument("--to", choices=FLAVOURS, default="genai", help=f"{names} (default: genai)")
    add_settings(parser, GenerationSettings)
    add_pair(parser)


def _code(options: argparse.Namespace) -> None:
    pair = chosen_pair(options)
    settings = raced_settings(options, pair)
    pair = compared(pair)
    print(code(options.to, pair, settings, options.prompt, local=True), end="")
