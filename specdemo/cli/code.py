"""`code`: settings as the few lines that reproduce them elsewhere."""

import argparse

from specdemo.cli.options import Commands, add_pair, add_settings, chosen_pair, raced_settings
from specdemo.models.checks import compared
from specdemo.models.converted import awaits_conversion, folder_of
from specdemo.presentation.code import FLAVOURS, code
from specdemo.records import Model
from specdemo.settings import GenerationSettings


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("code", help="print what reproduces settings in other software")
    parser.set_defaults(command=_code)
    parser.add_argument("prompt", metavar="PROMPT")
    names = ", ".join(f"{name}: {title}" for name, (title, _) in FLAVOURS.items())
    parser.add_argument("--to", choices=FLAVOURS, default="genai", help=f"{names} (default: genai)")
    add_settings(parser, GenerationSettings)
    add_pair(parser)


def _code(options: argparse.Namespace) -> None:
    pair = chosen_pair(options)
    settings = raced_settings(options, pair)
    pair = compared(pair)
    where = _folder if options.to in _OF_FOLDERS else _file
    print(code(options.to, pair, settings, options.prompt, where), end="")


_OF_FOLDERS = ("genai", "ovms")
"""Software that reads OpenVINO's folders."""


def _folder(model: Model) -> str:
    """A model's folder, or its GGUF file until that is converted."""
    return str(model.path if awaits_conversion(model) else folder_of(model))


def _file(model: Model) -> str:
    """A model as it was given: software other than OpenVINO needs it in its own format."""
    return model.name if model.path is None or model.path.is_dir() else str(model.path)
