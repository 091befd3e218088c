"""Whether a pair can run here, and in which engine, checked before any weights are loaded."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pydantic_core import to_json

from specdemo.capabilities import (
    DRAFT_KINDS,
    ENGINES,
    SERVER_ENGINE,
    EngineName,
    engine_that,
    local_engines,
    pair_refusal,
)
from specdemo.errors import OPENVINO_FAILURES, GGUFError, LoadError, PairError, SettingsError
from specdemo.files import link_or_copy
from specdemo.models.catalogue import catalogue, check_location, check_target, is_source, require_draft
from specdemo.models.converted import as_draft, folder_of, is_converted, stored_bytes
from specdemo.models.devices import in_units, memory_free, memory_needed
from specdemo.models.folder import NO_LIMIT, read_config
from specdemo.models.gguf import tokens_of
from specdemo.records import Model, ModelPair, Record
from specdemo.settings import Sampling
from specdemo.strategies import Strategy

if TYPE_CHECKING:
    import openvino_genai

_TOKENIZER = "openvino_tokenizer"
_MIN_OVERLAP = 0.98
"""Smallest share of the larger vocabulary (Qwen2.5's has 151,936 or 152,064 tokens); only sorts drafts."""


class EngineReport(Record):
    """Whether an engine can run the pair. `reason` says why not, or warns, for example of too little memory.

    `memory_needed` is an estimate in bytes, without KV caches of long texts.
    """

    engine: EngineName
    can_run: bool
    memory_needed: int
    reason: str | None = None

    @property
    def summary(self) -> str:
        answer = "can run this pair." if self.can_run else "cannot run this pair:"
        return f"{self.engine} engine: {answer} {self.reason or ''}".rstrip()


class PairReport(Record):
    """`same_tokenizer` is None for a target alone, a head, and an unconverted GGUF file; `memory_free`: in bytes."""

    target: Model
    draft: Model | None
    same_tokenizer: bool | None
    engines: tuple[EngineReport, ...]
    memory_free: int
    reason: str | None = None

    @property
    def fits(self) -> bool:
        return any(engine.can_run for engine in self.engines)


def check_pair(target: Model, draft: Model | None) -> PairReport:
    check_target(target)
    draft = draft and as_draft(draft)
    free = memory_free()
    if target.server is not None:
        report = EngineReport(engine=SERVER_ENGINE, can_run=True, memory_needed=0)
        return PairReport(target=target, draft=draft, same_tokenizer=None, engines=(report,), memory_free=free)
    unconverted = next((model for model in (target, draft) if model is not None and not is_converted(model)), None)
    compared = draft if draft is not None and not draft.head and unconverted is None else None
    difference = _difference(target, compared) if compared is not None else None
    target_bytes, draft_bytes = (0 if model is None else stored_bytes(model) for model in (target, draft))
    engines = []
    for name in local_engines():
        needed = memory_needed(target_bytes, draft_bytes, name)
        remark = refusal = _refusal(name, target, draft, difference)
        if remark is None and difference is not None:
            remark = "In greedy decoding only: the draft's tokenizer differs, so its text is re-encoded."
        elif remark is None and unconverted is not None:
            remark = f"{unconverted.name!r} is converted when it is first used; the tokenizers are compared then."
        elif remark is None and needed > free:
            remark = (
                f"It may need {in_units(needed)} of memory, but only {in_units(free)} is free; choose a smaller pair."
            )
        engines.append(EngineReport(engine=name, can_run=refusal is None, memory_needed=needed, reason=remark))
    same = difference is None if compared is not None else None
    reason = next((engine.reason for engine in engines if engine.reason), None)
    return PairReport(
        target=target, draft=draft, same_tokenizer=same, engines=tuple(engines), memory_free=free, reason=reason
    )


def drafts_for(target: Model, models: Iterable[Model]) -> list[Model]:
    """Return the models that may draft for a target, without opening them.

    Smaller models with the same vocabulary size come first, then larger ones, then those whose text must be
    re-encoded. A head works with one target's vocabulary only.
    """

    def shares_vocabulary(model: Model) -> bool:  # families pad their vocabularies to other multiples
        sizes = sorted((model.vocabulary or 0, target.vocabulary or 0))
        same = model.architecture == target.architecture and sizes[0] >= _MIN_OVERLAP * sizes[1]
        return model.vocabulary == target.vocabulary or (same and not model.head)

    def rank(model: Model) -> tuple[bool, bool]:
        larger = (model.weight_bytes or 0) >= (target.weight_bytes or 0)
        return not shares_vocabulary(model), larger

    able = (model for model in models if model != target and (shares_vocabulary(model) or not model.head))
    return sorted(able, key=rank)


def is_recommended(draft: Model, target: Model) -> bool:
    """Whether a draft very likely fits: the catalogue pairs them, or it is small and has the same tokenizer."""
    entries = (entry for entry in catalogue() if entry.supported)
    if any(is_source(draft, entry.draft) and is_source(target, entry.target) for entry in entries):
        return True
    if draft.head or draft.architecture != target.architecture:  # only the catalogue knows a head's target
        return False
    if 2 * (draft.weight_bytes or 0) > (target.weight_bytes or 0):
        return False
    with suppress(LoadError, GGUFError):
        return _difference(target, draft) is None
    return False


def fitting_draft(target: Model, models: Iterable[Model]) -> Model | None:
    return next((model for model in drafts_for(target, models) if is_recommended(model, target)), None)


def check_engine(pair: ModelPair, engine: EngineName) -> None:
    """Check that an engine can load a pair whose `translated` is set."""
    check_location(pair, engine)
    difference = _different_tokenizers() if pair.translated else None
    refusal = _refusal(engine, pair.target, pair.draft, difference)
    if refusal is not None:
        raise PairError(refusal)


def check_strategy(pair: ModelPair, engine: EngineName, strategy: Strategy, sampling: Sampling) -> None:
    check_engine(pair, engine)
    if strategy.drafter.model:
        require_draft(pair)
    different_vocabulary = (pair.draft and pair.draft.vocabulary) != pair.target.vocabulary
    penalty = sampling.repetition_penalty != 1 and different_vocabulary
    reason = pair_refusal(strategy, pair.draft_kind, engine, sampling=sampling.do_sample, penalty=penalty)
    if reason is not None:
        raise SettingsError(reason)


def with_tokenizers_compared(pair: ModelPair) -> ModelPair:
    """Return the pair with `translated` set by comparing its tokenizers; unchanged while a file is not converted."""
    target, draft = pair.target, pair.draft
    if draft is None or draft.head or draft.path is None or not all(map(is_converted, (target, draft))):
        return pair
    return pair.model_copy(update={"translated": _difference(target, draft) is not None})


@lru_cache(maxsize=64)
def _difference(target: Model, draft: Model) -> str | None:
    try:
        if target.path and draft.path and target.path.is_file() and draft.path.is_file():
            check_vocabularies(tokens_of(target.path), tokens_of(draft.path))
        else:
            check_vocabularies(load_tokenizer(target).get_vocab(), load_tokenizer(draft).get_vocab())
    except PairError as error:
        return str(error)
    return None


def _refusal(engine: EngineName, target: Model, draft: Model | None, difference: str | None) -> str | None:
    if engine in DRAFT_KINDS["translated"].engines:
        return None
    has_tokenizers = all(model.path is not None and is_converted(model) for model in (target, draft) if model)
    compares = ENGINES[engine].compares_special_tokens
    if difference is None and compares and draft is not None and not draft.head and has_tokenizers:
        return _special_token_refusal(target, draft)
    return difference


@lru_cache(maxsize=64)
def _special_token_refusal(target: Model, draft: Model) -> str | None:
    """Return why GenAI refuses two models with the same vocabulary: it also compares ids of special tokens."""
    tokenizers = load_tokenizer(target), load_tokenizer(draft)
    for name in ("bos", "eos", "pad"):
        id_, draft_id = (getattr(tokenizer, f"get_{name}_token_id")() for tokenizer in tokenizers)
        if id_ != draft_id:
            other = engine_that(lambda engine: engine.local and not engine.compares_special_tokens)
            return (
                f"GenAI takes a draft only if its {name} token is the target's, but these are {draft_id} and "
                f"{id_}; choose {other}, which needs only the same vocabulary."
            )
    return None


def load_tokenizer(model: Model) -> "openvino_genai.Tokenizer":
    import openvino_genai

    try:
        with _readable(folder_of(model)) as folder:
            return openvino_genai.Tokenizer(folder)
    except OPENVINO_FAILURES as error:
        message = f"OpenVINO cannot load the tokenizer of {model.name!r}"
        raise LoadError.of(error, message, "export it again") from error


def constants_of(root: ElementTree.Element, kinds: Collection[str]) -> list[ElementTree.Element]:
    """Return the data of the constants that are inputs of a network's operations of these kinds."""
    layers = {layer.get("id"): layer for layer in root.iter("layer")}
    edges = (edge for edge in root.iter("edge") if layers[edge.get("to-layer")].get("type") in kinds)
    inputs = (layers[edge.get("from-layer")] for edge in edges)
    return [data for layer in inputs if layer.get("type") == "Const" for data in layer.iter("data")]


@contextmanager
def _readable(folder: Path) -> Iterator[Path]:
    """Yield a tokenizer's folder, or a copy without what GenAI cannot read or would do silently.

    It cannot read infinite numbers in `config.json`. It lifts a tokenizer's limit, beyond which a text's beginning
    is cut off, only if the tokenizer combines segments, which that of its GGUF reader does not.
    """
    file, config = folder / f"{_TOKENIZER}.xml", read_config(folder)
    root, content = ElementTree.parse(file).getroot(), file.with_suffix(".bin").read_bytes()
    combines = any(layer.get("type") == "CombineSegments" for layer in root.iter("layer"))
    inputs = [] if combines else constants_of(root, ("Minimum", "Truncate"))
    numbers = [data for data in inputs if data.get("element_type") == "i32"]
    limits = (int.from_bytes(content[int(data.attrib["offset"]) :][:4], "little") for data in numbers)
    if min(limits, default=NO_LIMIT) >= NO_LIMIT and to_json(config) == to_json(config, inf_nan_mode="null"):
        yield folder
        return
    with TemporaryDirectory(ignore_cleanup_errors=True) as copy:
        for other in folder.iterdir():
            if other.name != "config.json" and (other.suffix in (".json", ".jinja") or "_detokenizer." in other.name):
                link_or_copy(other, Path(copy, other.name))
        Path(copy, "config.json").write_bytes(to_json(config, inf_nan_mode="null"))
        content += bytes(-len(content) % 64)
        for data in numbers:
            data.set("offset", str(len(content)))
        ElementTree.ElementTree(root).write(Path(copy, file.name))
        Path(copy, f"{_TOKENIZER}.bin").write_bytes(content + NO_LIMIT.to_bytes(4, "little"))
        yield Path(copy)


def check_vocabularies(target: dict[bytes, int], draft: dict[bytes, int]) -> None:
    """Check that common ids stand for the same tokens, and that nearly all ids are common: some models add a few."""
    by_id = {id_: text for text, id_ in target.items()}
    clash = next((id_ for text, id_ in draft.items() if by_id.get(id_, text) != text), None)
    if clash is None and len(target.keys() & draft.keys()) >= 0.95 * max(len(target), len(draft)):
        return
    detail = f"token {clash} differs" if clash is not None else f"{len(target)} tokens versus {len(draft)}"
    raise PairError(_different_tokenizers(f" ({detail})"))


def _different_tokenizers(detail: str = "") -> str:
    other = engine_that(lambda engine: "translated" in engine.drafts)
    return f"Target and draft have different tokenizers{detail}; choose a draft of the target's family, or {other}."
