"""`train-draft`: a draft, or a table of n-grams, for a target that has none."""

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from specdemo.cli.options import Commands, add_models_dir, positive
from specdemo.cli.terminal import show_conversion
from specdemo.errors import UsageError
from specdemo.files import ASSETS
from specdemo.models.converted import folder_of
from specdemo.models.gguf_convert import convert_models
from specdemo.models.library import resolve
from specdemo.models.pairs import check_target
from specdemo.models.places import models_dir
from specdemo.train import (
    CHAIN,
    KINDS,
    OBJECTIVES,
    VOCABULARY,
    Prompt,
    Request,
    Sources,
    is_corpus,
    make_table,
    read_passages,
    read_prompts,
    sources_in,
)

INSTALL = f"pip install -r {ASSETS / 'train-requirements.txt'}"
DEFAULT_MINUTES = 60.0


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("train-draft", help="train a draft for a target, on text that the target writes")
    parser.set_defaults(command=_train)
    which = "a model's name, a folder or a GGUF file"
    parser.add_argument("--target", required=True, metavar="NAME|DIR|FILE", help=f"the target: {which}")
    parser.add_argument("--out", required=True, metavar="NAME", help="the draft's name among your models")
    parser.add_argument(
        "--kind", choices=KINDS, default="draft", help="a table needs no PyTorch (default: %(default)s)"
    )
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="of people: one per line, or JSONL with prompt and source",
    )
    parser.add_argument(
        "--hold-out", metavar="SOURCE", default="", help="source of --prompts or --text to test on only"
    )
    parser.add_argument("--passages", type=Path, metavar="FILE", help="text from which passages for tasks are taken")
    parser.add_argument("--text", type=Path, metavar="DIR", help="text of an earlier run to begin with")
    parser.add_argument(
        "--from", dest="begin", metavar="NAME|DIR", help="an earlier draft or head of this command to begin from"
    )
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument(
        "--minutes", type=_minutes, metavar="M", help=f"of all stages together (default: {DEFAULT_MINUTES:g})"
    )
    budget.add_argument("--tokens", type=positive, metavar="N", help="of answers to write and train on")
    parser.add_argument(
        "--vocabulary",
        type=positive,
        default=VOCABULARY,
        metavar="N",
        help="tokens (default: %(default)s)",
    )
    parser.add_argument(
        "--objective", choices=OBJECTIVES, default="choice", help="of the second half (default: %(default)s)"
    )
    parser.add_argument(
        "--match-states",
        action="store_true",
        help="in the first half, pull the draft's hidden states towards the target's",
    )
    parser.add_argument(
        "--replay", action="store_true", help="at the end, tokens that the draft gets wrong count twice"
    )
    parser.add_argument(
        "--chain",
        type=int,
        choices=range(1, CHAIN + 1),
        help=f"tokens that a head learns to propose in a row (default: {CHAIN})",
    )
    parser.add_argument(
        "--curve", action="store_true", help="also train on parts of the text: is more text worth it?"
    )
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
    if options.kind == "table" and (options.curve or options.replay or options.match_states):
        raise UsageError(
            "A table is counted, not trained; leave --curve, --replay and --match-states out, or choose --kind draft."
        )
    if options.chain and options.kind != "eagle3":
        raise UsageError("Only a head learns chains; leave --chain out, or choose --kind eagle3.")
    sources = Sources(
        read_prompts(options.prompts) if options.prompts else (),
        read_passages(options.passages) if options.passages else (),
    )
    directory: Path | None = options.models_dir
    out = models_dir(directory) / options.out
    if Path(options.out).name != options.out or options.out.startswith("."):
        raise UsageError(f"--out {options.out!r} is not a plain name; give one without slashes or a leading dot.")
    if out.exists():
        raise UsageError(f"There is {str(out)!r} already; choose another --out, or delete it.")
    if options.text and not is_corpus(options.text):
        raise UsageError(f"--text {str(options.text)!r} holds no text of train-draft; name a folder with text.rows.")
    check_source(options.hold_out, sources.prompts, options.text)
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    target = resolve(options.target, directory)
    begin = resolve(options.begin, directory) if options.begin else None
    check_target(target)
    if options.kind != "table":
        check_installed()
    show_conversion(convert_models([target]))

    tokens = options.tokens or 0
    request = Request(
        target=target.name,
        kind=options.kind,
        minutes=0 if tokens else options.minutes or DEFAULT_MINUTES,
        tokens=tokens,
        vocabulary=options.vocabulary,
        objective=options.objective,
        match_states=options.match_states,
        replay=options.replay,
        chain=options.chain or CHAIN,
        curve=options.curve,
        hold_out=options.hold_out,
        text=str(options.text.resolve()) if options.text else "",
        begin=str(folder_of(begin)) if begin else "",
        penalty=options.penalty,
        seed=options.seed,
    )
    if request.kind == "table":
        make_table(request, target, out, sources, options.threads or 0, say=_say, effort=options.effort)
        return

    from specdemo.train.pipeline import Run  # imports PyTorch

    Run(request, target, out, options.threads or 0, say=_say, effort=options.effort).everything(sources)
    where = f" --models-dir {directory}" if directory is not None else ""
    print(f"Use it as: --target {options.target} --draft {options.out}{where}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def check_installed() -> None:
    """Check that PyTorch is installed.

    Raises:
        UsageError: it is not; the message contains the command to install it.
    """
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            "Training a draft needs PyTorch, which nothing else here does; make a table instead (--kind table), or "
            f"install it with: {INSTALL}"
        )


def check_source(hold_out: str, prompts: Sequence[Prompt], text: Path | None) -> None:
    """Check that the source to hold out is one of several, in the prompts or in the text to start with.

    Raises:
        UsageError: it is none of them, or the only one.
        FileError: the text is damaged.
    """
    if not hold_out:
        return
    sources = {one.label.source for one in prompts} | (sources_in(text) if text else set())
    if hold_out not in sources or len(sources) < 2:
        names = ", ".join(sorted(sources)) or "none, without either"
        raise UsageError(
            f"--hold-out must be one of several sources of --prompts or --text ({names}); choose another."
        )
