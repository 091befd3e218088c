"""The catalogue of recommended pairs, their models' locations on this machine, and the default pair.

Sizes in `assets/catalogue.json` are estimates, and the speedups in its notes are the models' authors'. A model in
the Hub's cache counts only if it is complete: it is inspected like any other, and its weights arrive last.
"""

import json
import os
import shlex
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, TypeAdapter

from specdemo.capabilities import DEFAULT_ENGINE, DRAFT_KINDS, ENGINES, SERVER_ENGINE, strategies, used_parameters
from specdemo.errors import ModelError, PairError, SettingsError, UnknownNameError, quoted
from specdemo.files import ASSETS, cache_folder, expand_path, is_writable, list_folder
from specdemo.models.converted import as_draft, conversions, file_digest, is_converted, traced_runtime
from specdemo.models.devices import memory_needed
from specdemo.models.folder import inspect_folder
from specdemo.models.gguf import inspect_model
from specdemo.records import Model, ModelPair, Prompts, Record
from specdemo.settings import GenerationSettings, RuntimeSettings
from specdemo.strategies import DraftKindName, ServerDefault, parameters, strategy_of

BUNDLED = ASSETS / "story-pair"
MODELS_VARIABLE, PAIR_VARIABLE = "SPECDEMO_MODELS", "SPECDEMO_PAIR"
_DEFAULT_PAIR = "smollm2-eagle3"


class Source(Record):
    """Where a model comes from: a `repository` on the Hub, or a bundled folder at `path`.

    `format` is OpenVINO IR, a model to convert, or a GGUF `file` at `revision`, which a Python `package` may also
    contain. `disk_bytes` is exact for a file, otherwise an estimate. Listings show `name`.
    """

    repository: str | None = None
    format: Literal["openvino", "convert", "gguf"]
    weights: Literal["int4", "int8", "fp16", "fp32", "Q4_1", "Q4_K_M"]
    disk_bytes: int
    license: str
    gated: bool = False
    trust_remote_code: bool = False
    path: Path | None = None
    name: str | None = None
    file: str | None = None
    revision: str | None = None
    sha256: str | None = None
    package: str | None = None

    @property
    def address(self) -> str:
        assert self.repository is not None
        return f"{self.repository}:{self.file}" if self.file is not None else self.repository

    @property
    def exported_name(self) -> str:
        """Name of its folder in the models directory, if it must be exported first."""
        return f"{(self.repository or '').rpartition('/')[-1]}-{self.weights}-ov"

    def export_command(self, folder: str) -> str:
        options = f"--weight-format {self.weights}" + " --trust-remote-code" * self.trust_remote_code
        quoted = shlex.quote(folder).replace("'~/", "~/'", 1)  # a quoted ~ is a folder of this name
        return f"optimum-cli export openvino --model {self.repository} {options} {quoted}"


class Defaults(Record):
    """A pair's default settings: arithmetic in which both sides' outputs can be identical."""

    runtime: RuntimeSettings = RuntimeSettings(precision="f32", kv_cache_precision="f32", dynamic_quantization="auto")
    generation: dict[str, bool | int | float | str] = Field(default_factory=dict)


class Entry(Record):
    """A pair of models. `prompts` suit the target; `reason` says why the pair is not supported."""

    name: str
    title: str
    target: Source
    draft: Source
    kind: DraftKindName
    prompts: Prompts
    reason: str | None = None
    notes: str = ""
    defaults: Defaults = Defaults()

    @property
    def supported(self) -> bool:
        return self.reason is None

    @property
    def sources(self) -> tuple[Source, ...]:
        return self.target, self.draft

    @property
    def disk_bytes(self) -> int:
        return sum(source.disk_bytes for source in self.sources)

    @property
    def memory_bytes(self) -> int:
        sizes = self.target.disk_bytes, self.draft.disk_bytes
        return max(memory_needed(*sizes, name) for name, engine in ENGINES.items() if engine.local)


@cache
def catalogue() -> tuple[Entry, ...]:
    return TypeAdapter(tuple[Entry, ...]).validate_json((ASSETS / "catalogue.json").read_bytes())


def find(name: str) -> Entry:
    entries = {entry.name: entry for entry in catalogue()}
    if name not in entries:
        raise UnknownNameError(f"The catalogue has no {quoted(name)}; {suggestion(name, list(entries))}.")
    return entries[name]


def suggestion(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, cutoff=0.5)
    return f"choose {' or '.join(near)}" if near else f"choose one of {', '.join(known)}"


def hub_cache() -> Path:
    """Return the cache of `huggingface_hub`, which reads the same variables, but only once."""
    folders = {"HF_HUB_CACHE": "", "HUGGINGFACE_HUB_CACHE": "", "HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"}
    for name, folder in folders.items():
        if os.environ.get(name):
            return expand_path(os.environ[name]) / folder
    return Path.home() / ".cache/huggingface/hub"  # on every system


def models_dir(directory: Path | None = None) -> Path:
    configured = os.environ.get(MODELS_VARIABLE)
    return directory or (expand_path(configured) if configured else cache_folder() / "models")


def cached_folders() -> dict[str, Path]:
    newest = {name: _first_complete(snapshots(storage)) for name, storage in repositories_in(hub_cache())}
    return {name: folder for name, folder in newest.items() if folder is not None}


def repositories_in(cache: Path) -> list[tuple[str, Path]]:
    """Return the repositories in a cache with the Hub's layout, with their storage."""
    storages = [path for path in list_folder(cache) if path.name.startswith("models--")]
    return [(storage.name.removeprefix("models--").replace("--", "/"), storage) for storage in storages]


def _first_complete(folders: Iterable[Path]) -> Path | None:
    for folder in folders:
        with suppress(ModelError):
            inspect_model(folder)
            return folder
    return None


def storage_of(repository: str) -> Path:
    return hub_cache() / f"models--{repository.replace('/', '--')}"


def snapshots(storage: Path) -> list[Path]:
    """Return the snapshots of a repository, newest first."""
    with suppress(OSError):
        return sorted(list_folder(storage / "snapshots"), key=lambda path: path.stat().st_mtime, reverse=True)
    return []


def local_folder(source: Source, directory: Path | None = None) -> Path | None:
    """Return a model's complete folder or GGUF file, or None; `directory` holds exported models."""
    if source.path is not None:
        return ASSETS / source.path
    assert source.repository is not None, "a source has a repository or a path"
    if source.format == "openvino":
        return _first_complete(snapshots(storage_of(source.repository)))
    if source.format == "gguf":
        assert source.file is not None
        paths = [*_packaged(source), *(folder / source.file for folder in snapshots(storage_of(source.repository)))]
        return next((path for path in paths if path.is_file() and _has_right_digest(source, path)), None)
    return _first_complete([exported_folder(source, directory)])


def _packaged(source: Source) -> list[Path]:
    if source.package is not None:
        with suppress(PackageNotFoundError):  # the package is not imported: its dependencies may be missing
            name = source.package.partition("==")[0]
            return [Path(str(file.locate())) for file in files(name) or () if file.name == source.file]
    return []


def _has_right_digest(source: Source, path: Path) -> bool:
    return source.sha256 is None or file_digest(path) == source.sha256


def exported_folder(source: Source, directory: Path | None = None) -> Path:
    return models_dir(directory) / source.exported_name


def entry_folders(
    entry: Entry, directory: Path | None = None, models: Iterable[Model] = ()
) -> tuple[Path | None, ...]:
    """Return the paths of the pair's models, target first, also of copies among `models`; None for one not here."""
    return tuple(
        local_folder(source, directory)
        or next((one.path for one in models if source.sha256 and is_source(one, source)), None)
        for source in entry.sources
    )


def bundled_pair(**runtime: Any) -> ModelPair:
    """Return the bundled pair, by default in f32, in which both outputs are identical."""
    target, draft = bundled_models()
    return pair_of(target, draft, runtime=default_runtime(target, **runtime))


def bundled_models() -> tuple[Model, Model]:
    target, draft = (
        inspect_folder(BUNDLED / role).model_copy(update={"name": f"{BUNDLED.name}/{role}"})
        for role in ("target", "draft")
    )
    return target, draft


def example_groups(kind: Prompts) -> dict[str, list[str]]:
    """Example prompts by title of their group, in the order in which speculation gains: on what is predictable."""
    groups: dict[Prompts, dict[str, list[str]]] = json.loads((ASSETS / "prompts.json").read_text(encoding="utf-8"))
    return groups[kind]


def bundled_prompts(kind: Prompts) -> list[str]:
    return [prompt for group in example_groups(kind).values() for prompt in group]


def default_pair(**runtime: Any) -> ModelPair:
    """Return the catalogue's pair named in SPECDEMO_PAIR, by default SmolLM2's.

    Return the bundled pair if a model is missing, or cannot be converted because the cache is not writable.
    """
    entry = find(os.environ.get(PAIR_VARIABLE) or _DEFAULT_PAIR)
    paths = [path for path in entry_folders(entry) if path is not None]
    if len(paths) < len(entry.sources) or entry.target.name is None:
        return bundled_pair(**runtime)
    models = [
        inspect_model(path).model_copy(update={"name": source.name})
        for source, path in zip(entry.sources, paths, strict=True)
    ]
    pair = pair_of(*models, runtime=default_runtime(models[0], **runtime))
    converted = all(map(is_converted, filter(None, (pair.target, pair.draft))))
    return pair if converted or is_writable(conversions()) else bundled_pair(**runtime)


def pair_of(target: Model, draft: Model | None = None, *, runtime: RuntimeSettings) -> ModelPair:
    check_target(target)
    if draft is not None and draft.name == target.name and draft.path != target.path:  # two folders of the same name
        draft = draft.model_copy(update={"name": f"{draft.name} (draft)"})
    form = {"form": runtime.weights}
    target, draft = target.model_copy(update=form), draft and as_draft(draft.model_copy(update=form))
    models = [model for model in (target, draft) if model is not None]
    bundled = len(models) > 1 and all(model.path is not None and model.path.parent == BUNDLED for model in models)
    name = BUNDLED.name if bundled else " + ".join(model.name for model in models)
    return ModelPair(name=name, target=target, draft=draft, runtime=runtime)


def check_target(model: Model) -> None:
    if model.head is not None:
        noun = DRAFT_KINDS[model.head].noun
        raise PairError(f"{model.name!r} is {noun}, which cannot generate text on its own; choose it as the draft.")


def require_draft(pair: ModelPair) -> Model:
    if pair.draft is None:
        raise PairError("This pair has no draft model; add one, or choose prompt lookup.")
    return pair.draft


def check_location(pair: ModelPair, engine: str) -> None:
    """Check that the pair is where the engine runs it."""
    if (pair.target.server is None) != ENGINES[engine].local:
        place, other = ("a server", SERVER_ENGINE) if ENGINES[engine].local else ("this machine", DEFAULT_ENGINE)
        raise SettingsError(f"This pair is on {place}; choose the {other} engine.")


@lru_cache(maxsize=256)  # looking it up reads files, which the page would do with every move of a slider
def defaults_of(target: Model) -> Defaults:
    """Return a target's default settings: the catalogue's if it is listed there, wherever it is stored."""
    if target.server is not None:
        return Defaults(generation={"engine": SERVER_ENGINE, "policy": ServerDefault.policy.name})
    for entry in catalogue():
        if is_source(target, entry.target):
            return entry.defaults
    return Defaults()


def is_source(model: Model, source: Source) -> bool:
    """Whether a model is the catalogue's, or a file with its content, which is read once if it has the same size."""
    path = model.path
    if source.sha256 is not None and path is not None and path.is_file():
        with suppress(OSError):  # it is gone or unreadable, so it is compared by its path
            return path.stat().st_size == source.disk_bytes and _has_right_digest(source, path)
    return local_folder(source) == path


def default_runtime(target: Model, **chosen: Any) -> RuntimeSettings:
    return RuntimeSettings.checked(**defaults_of(target).runtime.model_dump() | chosen)


def pair_settings(pair: ModelPair, **chosen: Any) -> GenerationSettings:
    """Return a pair's defaults updated with `chosen`. Where quantization helps, an engine that repeats bits is
    preferred, and prompt lookup proposes for a target alone.
    """
    if chosen.get("engine") in ENGINES:
        check_location(pair, chosen["engine"])
    chosen = {"drafter": "lookup" if pair.draft is None else "model"} | chosen
    if "engine" not in chosen and traced_runtime(pair) != pair.runtime:
        for engine in DRAFT_KINDS[pair.draft_kind or "model"].engines:
            if ENGINES[engine].repeats_bits:
                with suppress(SettingsError):  # a chosen setting needs another engine
                    return _with_defaults(pair, {"engine": engine} | chosen)
    return _with_defaults(pair, chosen)


def _with_defaults(pair: ModelPair, chosen: dict[str, Any]) -> GenerationSettings:
    """Leave out the default policy and its parameters if another drafter or policy is chosen, it lacks a chosen
    parameter, or the engine does not support all of it.
    """
    defaults = defaults_of(pair.target).generation
    policy = str(defaults.get("policy", ""))
    strategy = strategy_of("model", policy)
    if pair.servers is None and strategy is not None:
        engine = (defaults | chosen).get("engine", GenerationSettings.model_fields["engine"].default)
        needed = {*strategy.parameters(), *([] if "policy" in chosen else chosen.keys() & parameters())}
        supported = strategy in strategies(engine, pair.draft_kind) and needed <= used_parameters(strategy, engine)
        if not supported or (chosen["drafter"], chosen.get("policy", policy)) != ("model", policy):
            defaults = {name: defaults[name] for name in defaults.keys() - {"policy", *strategy.parameters()}}
    return GenerationSettings.checked(**defaults | chosen)


def changed_settings(pair: ModelPair, settings: GenerationSettings, **changes: Any) -> GenerationSettings:
    """Return settings with changes; values that are its strategy's defaults give way to those of the new strategy."""
    strategy = {name: getattr(settings, name) for name in ("engine", "drafter", "policy")}
    defaults = dict(pair_settings(pair, **strategy))
    chosen = {name: value for name, value in settings if value != defaults[name]}
    return pair_settings(pair, **chosen | strategy | changes)
