"""What the automatic lookahead learnt from earlier requests: per pair, machine and strategy, here and in the cache.

Only chances and rates are kept, no text. They save a request the rounds in which a draft must first earn its trust.
"""

import json
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from specdemo.decoding.auto import Experience
from specdemo.errors import SpecdemoError
from specdemo.models.places import own_cache, writable
from specdemo.models.weights import machine_name
from specdemo.records import ModelPair
from specdemo.strategies import Strategy


class Experiences:
    """Of one pair."""

    def __init__(self, pair: ModelPair) -> None:
        models = [(model.name, model.weights, model.weight_bytes) for model in (pair.target, pair.draft) if model]
        self._pair = [models, pair.runtime.model_dump(), machine_name()]
        self._latest: dict[str, Experience] = {}

    def of(self, strategy: Strategy) -> Experience | None:
        """What is known of a strategy; None before its first request."""
        latest = self._latest.get(strategy.name)
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):  # none, or of another version
            values = latest.to_dict() if latest is not None else json.loads(self._file(strategy.name).read_bytes())
            return Experience.from_dict(values)
        return None

    def keep(self, strategy: Strategy, experience: Experience) -> None:
        """Keep what a request is going to learn; what the one before learnt is written."""
        self.write()
        self._latest[strategy.name] = experience

    def write(self) -> None:
        """Write everything, if anything can be written to the cache."""
        for name, experience in self._latest.items():
            path = self._file(name)
            with suppress(OSError, SpecdemoError):
                writable(path.parent, "What the automatic lookahead learnt")
                path.write_text(json.dumps(experience.to_dict()), encoding="utf-8")

    def _file(self, name: str) -> Path:
        key = sha256(json.dumps([name, *self._pair]).encode()).hexdigest()[:32]
        return own_cache() / "experience" / f"{key}.json"
