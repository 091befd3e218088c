"""Text that a target wrote, on disk: one file of token ids and one of rows that say where each conversation lies.

A batch's ids are written before its rows, so after a crash the rows tell what is whole; what lies behind is cut off.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specdemo.train.network import Ids

OFFSET, LENGTH, PROMPT, SAMPLED, BATCH = range(5)
"""Columns of a row: first token, tokens in all, tokens of the prompt, 1 where the answer was sampled, batch."""


@dataclass(frozen=True)
class Conversation:
    """A prompt and the target's answer, as token ids; the prompt is the whole beginning, system turn included."""

    ids: Ids
    prompt: int
    sampled: bool


class Conversations:
    """A folder's `text.ids` (uint32) and `text.rows` (uint32, five columns)."""

    def __init__(self, folder: Path) -> None:
        """Open a folder, or begin one; cuts off what a crash left unfinished."""
        folder.mkdir(parents=True, exist_ok=True)
        self._ids, self._rows = folder / "text.ids", folder / "text.rows"
        for file in (self._ids, self._rows):
            file.touch()
        self.rows = self._read_rows()
        whole = int(self.rows[-1, OFFSET] + self.rows[-1, LENGTH]) if len(self.rows) else 0
        for file, size in ((self._ids, whole * 4), (self._rows, self.rows.nbytes)):
            with file.open("r+b") as opened:
                opened.truncate(size)

    def _read_rows(self) -> npt.NDArray[np.uint32]:
        data = np.fromfile(self._rows, np.uint32)
        return data[: len(data) // 5 * 5].reshape(-1, 5)

    @property
    def batches(self) -> int:
        """Batches that are whole."""
        return int(self.rows[-1, BATCH]) + 1 if len(self.rows) else 0

    @property
    def tokens(self) -> int:
        """Tokens of all conversations, prompts included."""
        return int(self.rows[:, LENGTH].sum())

    @property
    def answer_tokens(self) -> int:
        """Tokens of all answers."""
        return int(self.rows[:, LENGTH].sum() - self.rows[:, PROMPT].sum())

    def append(self, conversations: list[Conversation]) -> None:
        """Add a batch."""
        offset = int(self.rows[-1, OFFSET] + self.rows[-1, LENGTH]) if len(self.rows) else 0
        rows, batch = [], self.batches
        with self._ids.open("ab") as sink:
            for one in conversations:
                sink.write(one.ids.astype(np.uint32).tobytes())
                rows.append((offset, len(one.ids), one.prompt, int(one.sampled), batch))
                offset += len(one.ids)
        added = np.array(rows, np.uint32).reshape(-1, 5)
        with self._rows.open("ab") as sink:
            sink.write(added.tobytes())
        self.rows = np.concatenate([self.rows, added])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Conversation:
        offset, length, prompt, sampled, _ = (int(value) for value in self.rows[index])
        ids = np.fromfile(self._ids, np.uint32, length, offset=offset * 4)
        return Conversation(ids.astype(np.int64), prompt, bool(sampled))

    def __iter__(self) -> Iterator[Conversation]:
        return (self[index] for index in range(len(self)))
