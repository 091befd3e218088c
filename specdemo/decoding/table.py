"""A table of what a target usually says next: counts of its answers' n-grams, looked up without a model.

For every context of one to five tokens the file holds the likeliest next token, how often it followed, and how often
the context occurred. Contexts are stored as 32-bit hashes: two that collide cost a rejected proposal, never a wrong
output. Only numpy is needed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from specdemo.errors import ModelError, quoted

TABLE = "table.npz"
"""The file's name in a model's folder."""

LONGEST = 5  # tokens of a context
_VERSION = 1
_MOST = np.iinfo(np.uint16).max
_MULTIPLIER, _BITS = 0x9E3779B1, 0xFFFFFFFF  # 2³² divided by the golden ratio: multiplicative hashing, Knuth 6.4


@dataclass(frozen=True, slots=True)
class Following:
    """What followed the longest context that occurred."""

    size: int
    """Tokens of the context, 1 to `LONGEST`."""

    token: int
    """The likeliest next token."""

    count: int
    """How often it followed; at most 65,535."""

    total: int
    """How often the context occurred; at most 65,535."""


class Counts(NamedTuple):
    """Contexts of one length, in order of their hashes."""

    hashes: npt.NDArray[np.uint32]
    tokens: npt.NDArray[np.uint32]
    counts: npt.NDArray[np.uint16]
    totals: npt.NDArray[np.uint16]


class Table:
    """Counts by length of the context, and the size of the vocabulary they belong to."""

    def __init__(self, counts: Sequence[Counts], vocabulary: int) -> None:
        self.counts, self.vocabulary = tuple(counts), vocabulary

    @classmethod
    def count(cls, texts: Iterable[tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]], vocabulary: int) -> "Table":
        """Count over texts: token ids, and which of them count as continuations.

        A context that occurred once is left out: most such contexts never occur again.
        """
        pairs: list[list[npt.NDArray[np.uint64]]] = [[] for _ in range(LONGEST)]
        for ids, counted in texts:
            for size, hashes in enumerate(_hashes(ids), 1):
                wanted = counted[size:]
                following = ids[size:].astype(np.uint64)
                pairs[size - 1].append((hashes.astype(np.uint64) << np.uint64(32) | following)[wanted])
        return cls([_counted(np.concatenate(some or [np.zeros(0, np.uint64)])) for some in pairs], vocabulary)

    @classmethod
    def load(cls, path: Path) -> "Table":
        """Read a file.

        Raises:
            ModelError: it is not such a table.
        """
        try:
            with np.load(path, allow_pickle=False) as stored:
                if int(stored["version"]) != _VERSION:
                    raise ModelError(f"{quoted(path.name)} has another version's format; count it anew.")
                arrays = [[stored[f"{name}_{size}"] for name in Counts._fields] for size in range(1, LONGEST + 1)]
                return cls([Counts(*some) for some in arrays], int(stored["vocabulary"]))
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise ModelError(f"{quoted(path.name)} is not a table of train-draft; choose another file.") from error

    def save(self, path: Path) -> None:
        """Write the file, compressed."""
        arrays = {
            f"{name}_{size}": array
            for size, counts in enumerate(self.counts, 1)
            for name, array in counts._asdict().items()
        }
        np.savez_compressed(path, version=_VERSION, vocabulary=self.vocabulary, **arrays)

    def __len__(self) -> int:
        """Contexts of all lengths."""
        return sum(len(counts.hashes) for counts in self.counts)

    def following(self, context: Sequence[int]) -> Following | None:
        """What most often followed the longest suffix of `context` that occurred; None if none did."""
        found, key = None, 0
        for size, token in enumerate(reversed(context[-LONGEST:]), 1):
            key = _extended(key, int(token))
            hashes, tokens, counts, totals = self.counts[size - 1]
            place = int(hashes.searchsorted(np.uint32(key)))
            if place == len(hashes) or int(hashes[place]) != key:
                break  # no longer context occurred either
            found = Following(size, int(tokens[place]), int(counts[place]), int(totals[place]))
        return found


def _extended(key: int, token: int) -> int:
    """Hash of a context with one more token before it."""
    key = ((key ^ (token + 1)) * _MULTIPLIER) & _BITS
    return key ^ key >> 15


def _hashes(ids: npt.NDArray[np.int64]) -> Iterable[npt.NDArray[np.uint32]]:
    """For each size, hashes of the contexts that end before the tokens `size`, `size + 1`, ..."""
    keys = np.zeros(max(len(ids) - 1, 0), np.uint64)
    for size in range(1, LONGEST + 1):
        before = ids[: max(len(ids) - size, 0)].astype(np.uint64)
        keys = keys[len(keys) - len(before) :]
        keys = ((keys ^ (before + np.uint64(1))) * np.uint64(_MULTIPLIER)) & np.uint64(_BITS)
        keys = keys ^ keys >> np.uint64(15)
        yield keys.astype(np.uint32)


def _counted(pairs: npt.NDArray[np.uint64]) -> Counts:
    """The likeliest token for each hash; `pairs` are hashes with their next tokens in the lower half."""
    unique, counts = np.unique(pairs, return_counts=True)
    hashes, tokens = (unique >> np.uint64(32)).astype(np.uint32), (unique & np.uint64(_BITS)).astype(np.uint32)
    starts = np.unique(hashes, return_index=True)[1]
    totals = np.add.reduceat(counts, starts) if len(starts) else counts
    best = np.lexsort((-counts, hashes))[starts]
    best, totals = best[totals > 1], totals[totals > 1]
    some, all_ = (np.minimum(one, _MOST).astype(np.uint16) for one in (counts[best], totals))
    return Counts(hashes[best], tokens[best], some, all_)
