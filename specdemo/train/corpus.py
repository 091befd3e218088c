"""The target's text on disk: token ids, and rows that locate each conversation.

A batch's ids are written before its rows, so after a crash the rows show what is complete; the rest is truncated.
"""

import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specdemo.errors import FileError

Ids = npt.NDArray[np.int64]
"""Token ids, shape (tokens,)."""

Flags = npt.NDArray[np.bool_]
"""Shape (tokens,)."""

OFFSET, LENGTH, ANSWERED, LABEL, SAMPLED, BATCH = range(6)
"""Columns of a row: first token, number of tokens, number of answer tokens, label, 1 if sampled, batch."""

HELD_OUT, LEAST = 32, 8  # one prompt of greedy answers in 32, but at least 8, or a quarter if fewer
_ANSWER = np.uint32(1 << 31)  # set in the ids of answer tokens


class Label(NamedTuple):
    """Task and origin of a conversation."""

    kind: str
    """Kind of task, such as "summary"."""

    source: str
    """Source of the prompt: a data set's name, or one of `prompts.SOURCES`."""

    @classmethod
    def read(cls, line: str | bytes) -> "Label":
        """Return the label that a line of `text.labels` holds."""
        return cls(*json.loads(line))


@dataclass(frozen=True)
class Conversation:
    """A chat of one or more turns, as the target's chat template formats it, including the system turn."""

    ids: Ids
    answered: Flags
    """Mask of the tokens that the target wrote as answers."""

    label: Label
    sampled: bool = False

    @classmethod
    def of(cls, prompt: list[int], answer: list[int], label: Label, sampled: bool = False) -> "Conversation":
        """Return a single-turn chat."""
        ids = np.array(prompt + answer, np.int64)
        return cls(ids, np.arange(len(ids)) >= len(prompt), label, sampled)

    @property
    def prompt(self) -> int:
        """Number of tokens before the first answer."""
        return int(self.answered.argmax()) if self.answered.any() else len(self.ids)

    @property
    def digest(self) -> int:
        """Digest of the first prompt, by which repeated prompts are recognised."""
        return int.from_bytes(blake2b(self.ids[: self.prompt].astype(np.uint32).tobytes(), digest_size=8).digest())


class Parts(NamedTuple):
    """Indices of conversations to train and to test on."""

    train: list[int]
    held_out: list[int]
    """Prompts with the smallest digests, so that every corpus holds out the same prompts."""

    elsewhere: list[int]
    """Conversations from the source that is only tested on."""


FILES = ("text.ids", "text.rows", "text.labels")


class Corpus:
    """A folder's `text.ids` (uint32), `text.rows` (uint32, six columns) and `text.labels` (JSON lines)."""

    def __init__(self, folder: Path) -> None:
        """Open or create a folder; truncate what a crash left unfinished."""
        folder.mkdir(parents=True, exist_ok=True)
        self._ids, self._rows, self._labels = (folder / name for name in FILES)
        for file in (self._ids, self._rows, self._labels):
            file.touch()
        data = np.fromfile(self._rows, np.uint32)
        self.rows = data[: len(data) // (BATCH + 1) * (BATCH + 1)].reshape(-1, BATCH + 1)
        whole = int(self.rows[-1, OFFSET] + self.rows[-1, LENGTH]) if len(self.rows) else 0
        for file, size in ((self._ids, whole * 4), (self._rows, self.rows.nbytes)):
            with file.open("r+b") as opened:
                opened.truncate(size)
        lines = self._labels.read_text(encoding="utf-8").splitlines()
        self.labels = [Label.read(line) for line in lines[: self._used]]
        self._write_labels()

    @property
    def _used(self) -> int:
        return int(self.rows[:, LABEL].max()) + 1 if len(self.rows) else 0

    def _write_labels(self) -> None:
        self._labels.write_text("".join(json.dumps(label) + "\n" for label in self.labels), encoding="utf-8")

    @property
    def batches(self) -> int:
        """Number of complete batches."""
        return int(self.rows[-1, BATCH]) + 1 if len(self.rows) else 0

    @property
    def tokens(self) -> int:
        """Number of tokens of all conversations, including prompts."""
        return int(self.rows[:, LENGTH].sum())

    @property
    def answer_tokens(self) -> int:
        """Number of tokens of all answers."""
        return int(self.rows[:, ANSWERED].sum())

    def append(self, conversations: list[Conversation]) -> None:
        """Append a batch."""
        offset = int(self.rows[-1, OFFSET] + self.rows[-1, LENGTH]) if len(self.rows) else 0
        new = [label for label in dict.fromkeys(one.label for one in conversations) if label not in self.labels]
        if new:
            self.labels += new
            self._write_labels()
        rows, batch = [], self.batches
        with self._ids.open("ab") as sink:
            for one in conversations:
                sink.write((one.ids.astype(np.uint32) | _ANSWER * one.answered).astype(np.uint32).tobytes())
                label = self.labels.index(one.label)
                rows.append((offset, len(one.ids), int(one.answered.sum()), label, int(one.sampled), batch))
                offset += len(one.ids)
        added = np.array(rows, np.uint32).reshape(-1, BATCH + 1)
        with self._rows.open("ab") as sink:
            sink.write(added.tobytes())
        self.rows = np.concatenate([self.rows, added])

    def take(self, other: "Corpus", answer_tokens: int) -> None:
        """Copy another corpus's batches, until there are `answer_tokens` tokens of answers (0: all)."""
        for batch in range(other.batches):
            if answer_tokens and self.answer_tokens >= answer_tokens:
                break
            self.append([other[index] for index in np.flatnonzero(other.rows[:, BATCH] == batch).tolist()])

    def split(self, hold_out: str = "") -> Parts:
        """Split into conversations to train on and to test on; `hold_out` is a source of prompts, or ""."""
        elsewhere = {index for index in range(len(self)) if hold_out and self.label(index).source == hold_out}
        digests = {index: self[index].digest for index in range(len(self)) if index not in elsewhere}
        greedy = sorted({digest for index, digest in digests.items() if not self.rows[index, SAMPLED]})
        last = min(max(len(greedy) // HELD_OUT, LEAST), len(greedy) // 4)
        limit = greedy[last] if greedy else -1
        train = [index for index, digest in digests.items() if digest > limit]
        return Parts(train, [index for index, digest in digests.items() if digest <= limit], sorted(elsewhere))

    def label(self, index: int) -> Label:
        """Return the label of a conversation without reading its ids."""
        return self.labels[int(self.rows[index, LABEL])]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Conversation:
        offset, length, _, _, sampled, _ = (int(value) for value in self.rows[index])
        stored = np.fromfile(self._ids, np.uint32, length, offset=offset * 4)
        answered = stored >= _ANSWER
        return Conversation((stored & ~_ANSWER).astype(np.int64), answered, self.label(index), bool(sampled))

    def __iter__(self) -> Iterator[Conversation]:
        return (self[index] for index in range(len(self)))


def pack(folder: Path, out: Path) -> None:
    """Write a corpus's files compressed, about two bytes per token."""
    out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (out / f"{name}.xz").write_bytes(lzma.compress((folder / name).read_bytes(), preset=9))


def is_corpus(folder: Path) -> bool:
    """Check if a folder holds a corpus, packed or not."""
    return all((folder / name).is_file() or (folder / f"{name}.xz").is_file() for name in FILES)


def sources_in(folder: Path) -> set[str]:
    """Return the prompt sources of a folder's corpus, packed or not.

    Raises:
        FileError: the file is damaged.
    """
    try:
        return {Label.read(line).source for line in _stored(folder, FILES[2]).splitlines()}
    except (TypeError, ValueError) as error:
        raise _damaged(folder) from error


def unpacked(folder: Path, scratch: Path) -> Corpus:
    """Open the corpus of a folder, unpacking it into `scratch` if necessary.

    Raises:
        FileError: the files are damaged.
    """
    if (folder / FILES[0]).is_file():
        return Corpus(folder)
    scratch.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (scratch / name).write_bytes(_stored(folder, name))
    return Corpus(scratch)


def _stored(folder: Path, name: str) -> bytes:
    try:
        file = folder / name
        return file.read_bytes() if file.is_file() else lzma.decompress((folder / f"{name}.xz").read_bytes())
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise _damaged(folder) from error


def _damaged(folder: Path) -> FileError:
    return FileError(f"The text in {str(folder)!r} is damaged; leave --text out, or name another folder.")
