"""The strategy that won a benchmark on this machine, one for each pair and its runtime settings.

Which strategy is fastest depends on the processor, so it is measured where it is used: the page starts with the
winner, and says so.
"""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specdemo.errors import LoadError
from specdemo.models.converted import folder_of, machine_name
from specdemo.models.folder import files_digest
from specdemo.models.places import own_cache, remember
from specdemo.records import ModelPair, Record


class Winner(Record):
    """The method that won, such as "traced auto", with its settings and the benchmark in a sentence."""

    method: str
    settings: dict[str, Any]
    reason: str


def winner_of(pair: ModelPair) -> Winner | None:
    """Return the winner for a pair on this machine, if there was a benchmark."""
    with suppress(LoadError, OSError, ValidationError):
        return Winner.model_validate_json(_file(pair).read_bytes())
    return None


def remember_winner(pair: ModelPair, winner: Winner) -> None:
    """Store a winner in place of any earlier one.

    Raises:
        LoadError: a model of the pair is not on this machine, or not converted yet.
        SpecdemoError: the cache is not writable.
    """
    remember(_file(pair), winner.model_dump_json() + "\n", "The winner")


def _file(pair: ModelPair) -> Path:
    models = [files_digest(folder_of(model)) for model in (pair.target, pair.draft) if model is not None]
    described = json.dumps([models, pair.runtime.model_dump(mode="json")])
    key = hashlib.sha256(described.encode()).hexdigest()[:32]
    return own_cache() / "winners" / f"{key}-{machine_name()}.json"
