"""`train-draft`: a draft for a target that has none."""

import argparse
import importlib.util
import sys
from pathlib import Path

from specdemo.cli.numbers import positive
from specdemo.cli.options import Commands, add_models_dir, chosen_model
from specdemo.cli.progress import show_conversion
from specdemo.errors import FileError, UsageError
from specdemo.models.converted import folder_of
from specdemo.models.gguf_convert import convert_models
from specdemo.models.pairs import check_target
from specdemo.models.places import models_dir

INSTALL = "pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
DEFAULT_MINUTES = 60.0


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("train-draft", help="train a draft for a target, on text that the target writes")
    parser.set_defaults(command=_train)
    which = "a model's name, a folder or a GGUF file"
    parser.add_argument("--target", required=True, metavar="NAME|DIR|FILE", help=f"the target: {which}")
    parser.add_argument("--out", required=True, metavar="NAME", help="the draft's name among your models")
    parser.add_argument("--kind", choices=("draft", "eagle3"), default="draft", help="default: %(default)s")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="prompts of your own, one per line")
    parser.add_argument(
        "--from", dest="begin", metavar="NAME|DIR", help="an earlier draft of this command to begin from"
    )
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument(
        "--minutes", type=_minutes, metavar="M", help=f"of all stages together (default: {DEFAULT_MINUTES:g})"
    )
    budget.add_argument("--tokens", type=positive, metavar="N", help="of answers to write and learn from")
    parser.add_argument("--penalty", type=_penalty, default=1.1, help="repetition penalty (default: %(default)s)")
    parser.add_argument("--threads", type=positive, metavar="N", help="default: all")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    add_models_dir(parser)


def _minutes(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{value:g} is not positive")
    return value


def _penalty(text: str) -> float:
    value = float(text)
    if not 1 <= value <= 2:
        raise argparse.ArgumentTypeError(f"{value:g} is not between 1 and 2")
    return value


def _train(options: argparse.Namespace) -> None:
    check_installed()
    prompts = read_prompts(options.prompts) if options.prompts else []
    directory: Path | None = options.models_dir
    out = models_dir(directory) / options.out
    if Path(options.out).name != options.out or options.out.startswith("."):
        raise UsageError(f"--out {options.out!r} is not a plain name; give one without slashes or a leading dot.")
    if out.exists():
        raise UsageError(f"There is {str(out)!r} already; choose another --out, or delete it.")
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    target = chosen_model(options.target, directory)
    begin = chosen_model(options.begin, directory) if options.begin else None
    check_target(target)
    show_conversion(convert_models([target]))

    from specdemo.train.pipeline import Run  # imports PyTorch
    from specdemo.train.plan import Request

    tokens = options.tokens or 0
    request = Request(
        target=target.name,
        kind=options.kind,
        minutes=0 if tokens else options.minutes or DEFAULT_MINUTES,
        tokens=tokens,
        begin=str(folder_of(begin)) if begin else "",
        penalty=options.penalty,
        seed=options.seed,
    )
    Run(request, target, out, options.threads or 0, say=_say).everything(prompts)
    where = f" --models-dir {directory}" if directory is not None else ""
    print(f"Use it as: --target {options.target} --draft {options.out}{where}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def check_installed() -> None:
    """Check that PyTorch is here.

    Raises:
        UsageError: it is not; the message has the command that installs it.
    """
    if importlib.util.find_spec("torch") is None:
        raise UsageError(f"Training needs PyTorch, which nothing else here does; install it with: {INSTALL}")


def read_prompts(file: Path) -> list[str]:
    """Prompts of a file, one per line.

    Raises:
        FileError: there is no such file, or nothing in it.
    """
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"The prompts in {str(file)!r} cannot be read; name a text file.") from error
    if not any(lines):
        raise FileError(f"There are no prompts in {str(file)!r}; write one per line.")
    return [line for line in lines if line]
