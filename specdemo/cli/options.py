"""Options that commands share. Mistakes raise a `SpecdemoError` before anything starts."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from specdemo.api import BEST_DRAFT, load
from specdemo.capabilities import SERVER_ENGINE, ServerKind
from specdemo.errors import UsageError
from specdemo.models.catalogue import MODELS_VARIABLE, catalogue
from specdemo.records import SILENCE_SECONDS, ModelPair, Server, Servers
from specdemo.settings import GenerationSettings, RuntimeSettings, Sampling, choices
from specdemo.strategies import drafters, parameters

URL_VARIABLE = "SPECDEMO_URL"
PLAIN_URL_VARIABLE = "SPECDEMO_PLAIN_URL"

Commands = Any  # of `ArgumentParser.add_subparsers`, whose type is private to argparse


def add_settings(parser: argparse.ArgumentParser, settings: type[GenerationSettings | RuntimeSettings]) -> None:
    """Add one option per field, by topic. Unset ones stay out of the namespace: defaults live in the class."""
    groups: dict[str, Any] = {}
    by_pair = {"engine"}
    for entry in catalogue():
        by_pair |= entry.defaults.generation.keys() | entry.defaults.runtime.model_fields_set
    for name, field in settings.model_fields.items():
        topic = _topic(settings, name)
        if topic not in groups:
            groups[topic] = parser.add_argument_group(topic)
        flag = "--" + name.replace("_", "-")
        help_ = str(field.description).replace("%", "%%")
        default = "depends on the pair" if name in by_pair else "on" if field.default is True else field.default
        help_ += f" (default: {default})" if default not in (None, False, "") else ""
        groups[topic].add_argument(flag, dest=name, default=argparse.SUPPRESS, help=help_, **_kind(field))


def _topic(settings: type[GenerationSettings | RuntimeSettings], name: str) -> str:
    if settings is RuntimeSettings:
        return "how models are loaded"
    if name in Sampling.__dataclass_fields__:
        return "how tokens are chosen"
    return "drafter and lookahead" if name in parameters() | {"engine", "drafter", "policy"} else "the answer"


def add_pair(parser: argparse.ArgumentParser) -> None:
    names, form = "NAME|DIR|FILE", "a model's name, a folder or a GGUF file"
    default = "(default: SmolLM2 if it is on this machine, else the story pair's)"
    group = parser.add_argument_group("the pair")
    group.add_argument("--target", metavar=names, help=f"the target: {form} {default}")
    group.add_argument("--draft", metavar=names, help=f"the draft: {form}")
    add_models_dir(parser)
    add_settings(parser, RuntimeSettings)
    group = parser.add_argument_group("servers instead of a pair")
    url = "server that decodes speculatively, such as http://127.0.0.1:8080; without it, this side does not run"
    group.add_argument("--url", metavar="URL", help=f"{url} (default: ${URL_VARIABLE})")
    plain = f"the same for plain decoding (default: ${PLAIN_URL_VARIABLE})"
    group.add_argument("--plain-url", metavar="URL", help=plain)
    group.add_argument("--model", metavar="NAME", help="the model on the speculative server, if it has several")
    group.add_argument("--plain-model", metavar="NAME", help="the same on the plain server")
    group.add_argument("--server", choices=get_args(ServerKind), help="kind of the servers (default: detected)")
    silence = f"how long a server may stay silent (default: {SILENCE_SECONDS:g})"
    group.add_argument("--server-timeout", type=integer(1), default=SILENCE_SECONDS, metavar="SECONDS", help=silence)


def chosen_servers(options: argparse.Namespace) -> Servers | None:
    """Return the servers that options or, without them, the environment name; None if there are none."""
    local = options.target is not None or getattr(options, "engine", SERVER_ENGINE) != SERVER_ENGINE
    if local and (options.url or options.plain_url):
        raise UsageError("--url and --plain-url are for the server engine; leave them out, or --target and --engine.")
    urls = {
        "plain": options.plain_url or os.environ.get(PLAIN_URL_VARIABLE),
        "speculative": options.url or os.environ.get(URL_VARIABLE),
    }
    models = {"plain": options.plain_model, "speculative": options.model}
    if None not in models.values():  # two models on one server
        urls = {side: url or urls["speculative"] or urls["plain"] for side, url in urls.items()}
    servers = {
        side: Server(url=url, model=models[side], kind=options.server, silence_seconds=options.server_timeout)
        for side, url in urls.items()
        if url
    }
    return Servers(**servers) if servers else None


def add_models_dir(parser: argparse.ArgumentParser) -> None:
    help_ = f"your own OpenVINO folders and GGUF files (default: ${MODELS_VARIABLE}, or a folder in your cache)"
    parser.add_argument("--models-dir", type=Path, metavar="DIR", help=help_)


def chosen_pair(options: argparse.Namespace) -> ModelPair:
    """Return the pair that options name, which may still need conversion, or the default one."""
    servers = chosen_servers(options)
    engine = getattr(options, "engine", SERVER_ENGINE if servers is not None and options.target is None else None)
    if engine == SERVER_ENGINE:
        if servers is None:
            raise UsageError("The server engine needs the address of a server; give --url and --plain-url.")
        return load(options.target, options.draft, servers=servers).models
    if options.target is None and options.draft is not None:
        raise UsageError("--draft needs --target; give both.")
    best = BEST_DRAFT if drafters()[getattr(options, "drafter", "model")].model else None
    runtime = given_settings(options, RuntimeSettings)
    return load(options.target, options.draft or best, models_dir=options.models_dir, **runtime).models


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", metavar="PATH", help=f"write {what} as JSON; - for standard output")


def _kind(field: FieldInfo) -> dict[str, Any]:
    annotation = field.annotation
    if annotation is bool:
        return {"action": argparse.BooleanOptionalAction}  # some are on by default
    if (values := choices(field)) is not None:
        return {"choices": [*values]}
    if get_origin(annotation) in (Union, UnionType):
        annotation = get_args(annotation)[0]
    return {"type": annotation, "metavar": getattr(annotation, "__name__", "value").upper()}


def given_settings(options: argparse.Namespace, kind: type[GenerationSettings | RuntimeSettings]) -> dict[str, Any]:
    return {name: value for name, value in vars(options).items() if name in kind.model_fields}


def integer(least: int, most: int | None = None) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least or (most is not None and value > most):
            limits = f"{least} or more" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{value} is out of range; give {limits}")
        return value

    return number
