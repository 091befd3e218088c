"""What a run was asked for, kept beside what it made, so that started again it goes on and never mixes two runs."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from specdemo.errors import UsageError

Kind = Literal["draft", "eagle3"]


@dataclass(frozen=True)
class Request:
    """A draft to be trained. Of `minutes` and `tokens` exactly one is above 0."""

    target: str
    kind: Kind = "draft"
    minutes: float = 0
    """Of writing, reading and learning together, over all starts."""

    tokens: int = 0
    """Tokens of answers to write; then every one is learnt from `EPOCHS` times."""

    kept: int = 8192
    """Tokens that the draft can write, at most."""

    begin: str = ""
    """Folder of the earlier draft from which this one begins; empty: parts of the target."""

    penalty: float = 1.1
    """Repetition penalty of the answers, and of the comparison."""

    seed: int = 0


def keep(request: Request, work: Path) -> None:
    """Write the request down, or compare it with the one that is gone on with.

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
            f"Another draft was begun under this name, with another {changed}; "
            f"repeat its options, choose another --out, or delete {str(work)!r}."
        )
