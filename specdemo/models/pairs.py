"""The bundled pair, and pairs from a user's own folders."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from specdemo.errors import FolderError, PairError, SettingsError
from specdemo.files import ASSETS
from specdemo.models.catalogue import Defaults, Source, catalogue, find
from specdemo.models.converted import conversions, file_digest, has_int8_weights, is_converted
from specdemo.models.devices import int8_runtime
from specdemo.models.folder import inspect_folder, own_head
from specdemo.models.gguf import inspect_model
from specdemo.models.hub import local_folder
from specdemo.models.places import is_writable
from specdemo.records import Model, ModelPair, Prompts
from specdemo.settings import GenerationSettings, RuntimeSettings
from specdemo.strategies import DRAFT_KINDS

BUNDLED = ASSETS / "story-pair"
PAIR_VARIABLE = "SPECDEMO_PAIR"
_FIRST_CHOICE = "smollm2"


def bundled_pair(**runtime: Any) -> ModelPair:
    """Return the bundled pair, in f32 by default, where its outputs are identical."""
    return _initial_pair(*bundled_models(), runtime=runtime)


def bundled_models() -> tuple[Model, Model]:
    target, draft = (
        inspect_folder(BUNDLED / role).model_copy(update={"name": f"{BUNDLED.name}/{role}"})
        for role in ("target", "draft")
    )
    return target, draft


def initial_runtime(target: Model) -> RuntimeSettings:
    return default_settings(target).runtime


def default_settings(target: Model) -> Defaults:
    """Return the default settings for a target: the catalogue's if it is listed there, wherever it is stored."""
    if target.server is not None:
        return Defaults(generation={"engine": "server", "policy": "server"})
    if target.path is None:
        return Defaults()
    listed = (entry for entry in catalogue() if _is(target.path, entry.target))
    return next((entry.begin for entry in listed), Defaults())


def _is(path: Path, source: Source) -> bool:
    """Whether a folder or file is the catalogue's model: by its path or, for a file, by its content."""
    if source.sha256 is not None and path.is_file():
        with suppress(OSError):
            return path.stat().st_size == source.disk_bytes and file_digest(path) == source.sha256
    return local_folder(source) == path


def initial_settings(pair: ModelPair, **chosen: Any) -> GenerationSettings:
    begin = default_settings(pair.target).generation
    if "engine" not in chosen and _gains_traced(pair):
        with suppress(SettingsError):  # what is chosen needs the other engine
            return GenerationSettings.checked(**begin | {"engine": "traced"} | chosen)
    return GenerationSettings.checked(**begin | chosen)


def _gains_traced(pair: ModelPair) -> bool:
    """Whether the traced engine quantizes activations, so that speculation gains more there."""
    may = int8_runtime(pair.runtime) != pair.runtime and "traced" in DRAFT_KINDS[pair.draft_kind or "model"].engines
    return may and has_int8_weights(pair.target)


def pair_settings(pair: ModelPair, **chosen: Any) -> GenerationSettings:
    return initial_settings(pair, **{"drafter": default_drafter(pair)} | chosen)


def default_drafter(pair: ModelPair) -> str:
    return "lookup" if pair.draft is None else "model"


def default_pair(**runtime: Any) -> ModelPair:
    """Return the default pair: the catalogue's pair named in SPECDEMO_PAIR, else SmolLM2's, else the bundled one.

    Skips a pair that is not on this machine, or that needs conversion while the cache is not writable; a GGUF file
    may not be converted yet.

    Raises:
        UnknownNameError: the catalogue has no pair of the name in SPECDEMO_PAIR.
        SettingsError: a runtime setting is out of its range.
    """
    entry = find(os.environ.get(PAIR_VARIABLE) or _FIRST_CHOICE)
    paths = [local_folder(source) for source in entry.sources]
    if None in paths or entry.target.name is None:
        return bundled_pair(**runtime)
    models = [
        inspect_model(path).model_copy(update={"name": source.name})
        for source, path in zip(entry.sources, paths, strict=True)
        if path is not None
    ]
    if not all(map(is_converted, models)) and not is_writable(conversions()):
        return bundled_pair(**runtime)
    return _initial_pair(*models, runtime=runtime)


def _initial_pair(target: Model, draft: Model | None = None, *, runtime: dict[str, Any]) -> ModelPair:
    return pair_of(target, draft, runtime=RuntimeSettings.checked(**initial_runtime(target).model_dump() | runtime))


def bundled_prompts(kind: Prompts) -> list[str]:
    prompts: dict[Prompts, list[str]] = json.loads((ASSETS / "prompts.json").read_text(encoding="utf-8"))
    return prompts[kind]


def pair_of(target: Model, draft: Model | None = None, *, runtime: RuntimeSettings) -> ModelPair:
    """Return a pair of two models, or a target alone; a target in parts drafts with its own head."""
    check_target(target)
    if target.in_parts and (draft is None or draft.path == target.path):
        draft = own_head(target)
    if draft is not None and draft.name == target.name and draft.path != target.path:  # two folders of the same name
        draft = draft.model_copy(update={"name": f"{draft.name} (draft)"})
    models = [model.model_copy(update={"form": runtime.weights}) for model in (target, draft) if model is not None]
    bundled = len(models) > 1 and all(model.path is not None and model.path.parent == BUNDLED for model in models)
    name = BUNDLED.name if bundled else " + ".join(model.name for model in models)
    return ModelPair(name=name, target=models[0], draft=next(iter(models[1:]), None), runtime=runtime)


def check_target(model: Model) -> None:
    """Check that a model can generate text."""
    if model.head is not None:
        noun = DRAFT_KINDS[model.head].noun
        raise PairError(f"{model.name!r} is {noun}, which cannot generate text on its own; choose it as the draft.")
    if not model.detokenizer:
        raise FolderError(f"{model.name!r} has no detokenizer, so it can only be a draft; choose another target.")


def require_draft(pair: ModelPair) -> Model:
    if pair.draft is None:
        raise PairError("This pair has no draft model; add one, or choose prompt lookup.")
    return pair.draft
