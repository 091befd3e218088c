"""The decoding strategy that won a benchmark on this machine, one for each pair and choice of runtime settings.

Which strategy gains most depends on the processor, so it is measured where it is used: the page starts with the
winner, and says so.
"""

import hashlib
import json
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import openvino
from pydantic import ValidationError

from specdemo.errors import LoadError
from specdemo.models.converted import folder_of, machine_name
from specdemo.models.folder import files_digest
from specdemo.models.places import own_cache, write_whole
from specdemo.records import ModelPair, Record

_INDIFFERENT = {"enable_prefix_caching", "cache_size", "model_cache"}  # runtime settings of no effect on the winner


class Winner(Record):
    """The settings that make up the winning strategy, and the benchmark's result in a sentence."""

    settings: dict[str, Any]
    reason: str


@lru_cache(64)
def winner_of(pair: ModelPair) -> Winner | None:
    """Return the winner for a pair on this machine, if there was a benchmark.

    Within a process the answer stays the same: a page's controls and links rely on it.
    """
    with suppress(LoadError, OSError, ValidationError):
        return Winner.model_validate_json(_file(pair).read_bytes())
    return None


def keep_winner(pair: ModelPair, winner: Winner) -> None:
    """Store a winner in place of any earlier one; processes that start later use it.

    Raises:
        LoadError: a model of the pair is not on this machine, or not converted yet.
        SpecdemoError: the cache is not writable.
    """
    write_whole(_file(pair), winner.model_dump_json() + "\n", "The winner")


def _file(pair: ModelPair) -> Path:
    models = [files_digest(folder_of(model)) for model in (pair.target, pair.draft) if model is not None]
    runtime = pair.runtime.model_dump(mode="json", exclude=_INDIFFERENT)
    described = json.dumps([models, runtime, openvino.get_version()])
    key = hashlib.sha256(described.encode()).hexdigest()[:32]
    return own_cache() / "winners" / f"{key}-{machine_name()}.json"
