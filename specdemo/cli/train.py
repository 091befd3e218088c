"""`train-draft`: a draft for a target that has none."""

import argparse
import importlib.util
from pathlib import Path

from specdemo.cli.options import Commands, add_models_dir, chosen_model, positive
from specdemo.errors import FileError, UsageError
from specdemo.models.gguf_convert import folder_of
from specdemo.models.places import models_dir

INSTALL = "pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
DEFAULT_MINUTES = 60.0


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("train-draft", help="train a draft for a target, on text that it writes itself")
    parser.set_defaults(command=_train)
    parser.add_argument("--target", required=True, metavar="NAME|DIR|FILE.gguf", help="the model to draft for")
    parser.add_argument("--out", required=True, metavar="NAME", help="the draft's name among your models")
    parser.add_argument("--kind", choices=("draft", "eagle3"), default="draft", help="default: %(default)s")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="questions of your own, one a line")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=float, metavar="M", help=f"of everything (default: {DEFAULT_MINUTES:g})")
    budget.add_argument("--tokens", type=positive, metavar="N", help="of answers to write and learn from")
    parser.add_argument("--penalty", type=float, default=1.1, help="repetition penalty of use (default: %(default)s)")
    parser.add_argument("--threads", type=positive, metavar="N", help="default: all")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    add_models_dir(parser)


def _train(options: argparse.Namespace) -> None:
    check_installed()
    prompts = read_prompts(options.prompts) if options.prompts else []
    directory: Path | None = options.models_dir
    target = folder_of(chosen_model(options.target, directory))
    out = models_dir(directory) / options.out
    if out.exists():
        raise UsageError(f"There is {str(out)!r} already; choose another --out, or delete it.")
    from specdemo.train.pipeline import Run
    from specdemo.train.plan import Request

    tokens = options.tokens or 0
    request = Request(
        target=target.name,
        kind=options.kind,
        minutes=0 if tokens else options.minutes or DEFAULT_MINUTES,
        tokens=tokens,
        penalty=options.penalty,
        seed=options.seed,
    )
    Run(request, target, out, options.threads or 0).everything(prompts)


def check_installed() -> None:
    """Check that PyTorch is here.

    Raises:
        UsageError: it is not; the message has the command that installs it.
    """
    if importlib.util.find_spec("torch") is None:
        raise UsageError(f"Training needs PyTorch, which nothing else here does; install it with: {INSTALL}")


def read_prompts(file: Path) -> list[str]:
    """Questions of a file, one a line.

    Raises:
        FileError: there is no such file, or nothing in it.
    """
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"The prompts in {str(file)!r} cannot be read; name a text file.") from error
    if not any(lines):
        raise FileError(f"There are no prompts in {str(file)!r}; write one a line.")
    return [line for line in lines if line]
