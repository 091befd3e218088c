"""A training request, and how much work goes into it.

The request is stored with the files it produces, so that restarted training resumes and never mixes two requests.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from specdemo.errors import UsageError

Kind = Literal["draft", "eagle3", "table"]
Objective = Literal["distribution", "choice", "acceptance"]
KINDS: tuple[Kind, ...] = get_args(Kind)
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
VOCABULARY = 16384  # tokens
CHAIN = 3  # tokens that a head learns to propose in a row


@dataclass(frozen=True)
class Request:
    """A draft to train. Exactly one of `minutes` and `tokens` is above 0."""

    target: str
    kind: Kind = "draft"
    minutes: float = 0
    """Minutes of writing, labelling and training together, over all starts."""

    tokens: int = 0
    """Answer tokens to write; training then makes at most `Effort.epochs` passes over them."""

    vocabulary: int = VOCABULARY
    """Maximum number of tokens in the draft's vocabulary."""

    objective: Objective = "choice"
    """Objective of the second half of training; the first half matches the target's distribution."""

    match_states: bool = False
    """True to also pull the draft's last hidden states towards the target's, in the first half."""

    replay: bool = False
    """True to give tokens that the draft gets wrong more weight at the end of training."""

    chain: int = CHAIN
    """Maximum number of tokens in a row that a head learns to propose, 1 to 3."""

    curve: bool = False
    """True to also train drafts on parts of the text, to see how much more text helps."""

    hold_out: str = ""
    """Source of prompts that is only tested on; empty for none."""

    text: str = ""
    """Folder of text to start with, such as an earlier run's; empty for none."""

    begin: str = ""
    """Folder of an earlier draft to start from; empty to start from parts of the target."""

    penalty: float = 1.1
    """Repetition penalty of the answers, and of the comparison with the target."""

    seed: int = 0


@dataclass(frozen=True)
class Effort:
    """Amount of work for a training; smaller in tests."""

    batch: int = 64
    """Conversations that the target writes at once."""

    answer: int = 256
    """Maximum tokens of an answer."""

    epochs: int = 6
    """Passes over the text, if the budget is in tokens."""

    races: int = 5
    """Prompts to race the finished draft on; 0 skips step costs and races."""

    race_tokens: int = 128
    """Maximum tokens of a race."""

    save_seconds: float = 120
    """Seconds between checkpoints."""


FULL = Effort()


class Clock:
    """Seconds of a stage, added up over all starts in a file."""

    def __init__(self, file: Path, budget: float) -> None:
        """Continue from `file`; `budget` is in seconds, 0 for no limit."""
        self.file, self.budget = file, budget
        self.before = float(file.read_text()) if file.exists() else 0.0
        self.began = time.monotonic()

    def share(self) -> float:
        """Return the share of the budget that is spent; 0 without a limit."""
        spent = self.before + time.monotonic() - self.began
        self.file.write_text(f"{spent:.1f}")
        return spent / self.budget if self.budget else 0.0


def remember(request: Request, work: Path) -> None:
    """Store the request, or compare it with the one being resumed.

    Raises:
        UsageError: this name belongs to another request.
    """
    file = work / "request.json"
    asked = json.dumps(asdict(request), indent=2) + "\n"
    if not file.exists():
        work.mkdir(parents=True, exist_ok=True)
        file.write_text(asked, encoding="utf-8")
    elif (before := asdict(Request(request.target)) | json.loads(file.read_text(encoding="utf-8"))) != asdict(
        request
    ):
        changed = ", ".join(name for name, value in asdict(request).items() if before.get(name) != value)
        raise UsageError(
            f"Another draft was started under this name, with another {changed or 'version of this program'}; "
            f"repeat its options, choose another --out, or delete {str(work)!r}."
        )
