"""What a training makes, and how much work goes into it.

The request is stored beside what it made, so that a training that is started again continues and never mixes two.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from specdemo.errors import UsageError

Kind = Literal["draft", "eagle3", "table"]
Objective = Literal["distribution", "choice", "acceptance"]
KINDS: tuple[Kind, ...] = get_args(Kind)
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
VOCABULARY = 16384  # tokens


@dataclass(frozen=True)
class Request:
    """A draft to be trained. Of `minutes` and `tokens` exactly one is above 0."""

    target: str
    kind: Kind = "draft"
    minutes: float = 0
    """Of writing, reading and training together, over all starts."""

    tokens: int = 0
    """Tokens of answers to write; then training passes over them at most `Effort.epochs` times."""

    vocabulary: int = VOCABULARY
    """Tokens that the draft can write, at most."""

    objective: Objective = "choice"
    """Of the second half of the training; the first half matches the target's distribution."""

    match_states: bool = False
    """Whether the first half also draws the draft's last hidden states to the target's."""

    replay: bool = False
    """Whether tokens that the draft gets wrong count more at the end of the training."""

    curve: bool = False
    """Whether drafts are also trained on parts of the text, to see what more text is worth."""

    hold_out: str = ""
    """Source of prompts that is only tested on; empty: none."""

    text: str = ""
    """Folder of a text to begin with, such as an earlier run's; empty: none."""

    begin: str = ""
    """Folder of the earlier draft from which this one begins; empty: parts of the target."""

    penalty: float = 1.1
    """Repetition penalty of the answers, and of the comparison."""

    seed: int = 0


@dataclass(frozen=True)
class Effort:
    """How much work goes into a training. Tests of small models on little text want less."""

    batch: int = 64
    """Conversations that the target writes at once."""

    answer: int = 256
    """Tokens of an answer, at most."""

    epochs: int = 6
    """Passes over the text, where its size is the budget."""

    races: int = 5
    """Prompts on which the finished draft races; 0 leaves step costs and races out."""

    race_tokens: int = 128
    """Tokens of a race, at most."""

    save_seconds: float = 120
    """Seconds between checkpoints."""


FULL = Effort()


def remember(request: Request, work: Path) -> None:
    """Write the request down, or compare it with the one that is continued.

    Raises:
        UsageError: another draft was begun under this name.
    """
    file = work / "request.json"
    asked = json.dumps(asdict(request), indent=2) + "\n"
    if not file.exists():
        work.mkdir(parents=True, exist_ok=True)
        file.write_text(asked, encoding="utf-8")
    elif (before := json.loads(file.read_text(encoding="utf-8"))) != asdict(request):
        changed = ", ".join(name for name, value in asdict(request).items() if before.get(name) != value)
        raise UsageError(
            f"Another draft was begun under this name, with another {changed or 'version of this program'}; "
            f"repeat its options, choose another --out, or delete {str(work)!r}."
        )
