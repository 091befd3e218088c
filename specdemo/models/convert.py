"""Conversion of Hugging Face models to OpenVINO IR, by optimum-intel in a separate process.

optimum-intel needs PyTorch, so it is required only for conversion. A model is converted in a hidden folder beside its
final place and moves there when it is complete.
"""

import importlib.util
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

from specdemo.child import last_line, program
from specdemo.errors import ConversionError, quoted
from specdemo.files import ASSETS
from specdemo.models.folder import inspect_folder
from specdemo.models.hub_process import NEEDED
from specdemo.models.places import models_dir, writable
from specdemo.records import Model

REQUIREMENTS = ASSETS / "export-requirements.txt"


def converted_folder(model: str, weights: str, directory: Path | None = None) -> Path:
    """Where the converted model is, or would be: `<models directory>/<name>-<weights>-ov`."""
    name = Path(model).resolve().name if Path(model).is_dir() else model.rpartition("/")[-1]
    return models_dir(directory) / f"{name}-{weights}-ov"


def convert(
    model: str,
    weights: str,
    output: Path | None = None,
    *,
    trust_remote_code: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Model | None:
    """Convert a repository of the Hub, or a local folder, to OpenVINO IR; None if `stop` returned True meanwhile.

    Raises:
        ConversionError: optimum-intel is not installed, or could not convert it; the message says what to do.
        FolderError: what it wrote is not a whole model.
    """
    folder = output or converted_folder(model, weights)
    if folder.exists():
        raise ConversionError(
            f"{quoted(str(folder))} already exists; use it, delete it, or choose another with --output."
        )
    check_installed()
    options = ["--trust-remote-code"] if trust_remote_code else []
    if weights == "int4":  # the usual group size does not divide some matrices
        options += ["--group-size-fallback", "adjust"]
    writable(folder.parent, "The conversion", "choose another folder with --output")
    with tempfile.TemporaryDirectory(prefix=".converting-", dir=folder.parent) as scratch:
        whole = Path(scratch) / folder.name
        if not export(model, whole, weights, *options, stop=stop):
            return None
        inspect_folder(whole, draft=True)
        whole.rename(folder)
    return inspect_folder(folder, draft=True)


def check_installed() -> None:
    """Check that optimum-intel is installed.

    Raises:
        ConversionError: it is not; the message has the commands that install it.
    """
    if importlib.util.find_spec("optimum") is None or importlib.util.find_spec("optimum.intel") is None:
        raise ConversionError(
            f"Conversion needs optimum-intel in this environment; install it with: {how_to_install()}"
        )


def how_to_install() -> str:
    """The commands, with the versions that the project is tested with; PyTorch for the CPU is enough."""
    commands = re.findall(r"^#\s+(pip install .+)$", REQUIREMENTS.read_text(encoding="utf-8"), re.MULTILINE)
    here = [re.sub(r"-r assets/(\S+)", rf"-r {ASSETS}/\1", command) for command in commands]
    return " && ".join(f"{sys.executable} -m {command}" for command in here)


def export(
    model: str | Path, destination: Path, weights: str, *options: str, stop: Callable[[], bool] = lambda: False
) -> bool:
    """Export a model with tokenizer and detokenizer; keep only the files that OpenVINO GenAI reads.

    False if `stop` returned True meanwhile; `options` are those of `optimum-cli export openvino`.

    Raises:
        ConversionError: optimum-intel failed; the message quotes its last line.
    """
    task = ["--task", "text-generation-with-past", "--weight-format", weights, *options]
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".exporting-") as scratch:
        if not _optimum("export", "openvino", "--model", str(model), *task, scratch, stop=stop):
            return False
        destination.mkdir()
        for file in Path(scratch).iterdir():
            if any(fnmatch(file.name, pattern) for pattern in NEEDED):
                shutil.move(file, destination / file.name)
    return True


def _optimum(*arguments: str, stop: Callable[[], bool]) -> bool:
    for ended in program([sys.executable, "-m", "optimum.commands.optimum_cli", *arguments], stop):
        if ended is not None:
            if ended.status:
                raise ConversionError(_explained(arguments[3], ended.log))
            return True
    return False


def _explained(model: str, log: str) -> str:
    if "text2text-generation" in log:  # the task that optimum-intel offers instead
        return (
            f"{model} is an encoder–decoder model like T5, for which OpenVINO GenAI has no speculative decoding; "
            "choose a decoder-only model."
        )
    if re.search(r"gated repo|GatedRepo", log):
        return f"{model} is gated; accept its licence at https://huggingface.co/{model} and set HF_TOKEN."
    if "trust_remote_code" in log:
        return f"{model} comes with its own code; if you trust it, convert it with --trust-remote-code."
    return f"optimum-intel could not convert {model} (its last message: {last_line(log)}); choose another model."
