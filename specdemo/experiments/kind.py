"""A kind of experiment, as page and terminal offer it: what can be chosen, and the plan that follows.

Whoever adds a kind writes its plan and result in one module, and declares it there with a `Kind`; its command, its
tab and its reports follow.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from specdemo.experiments.plan import Plan
from specdemo.models.pairs import begun
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings
from specdemo.strategies import EngineName

Choices = Callable[[ModelPair], Sequence[Any]]


@dataclass(frozen=True)
class Option:
    """Something to choose besides prompts, repeats and generation settings.

    Values are of `type`: "count" is a whole number, the others are several values. The page offers `choices`, which
    may depend on the pair, with those of `first` chosen. The terminal takes any, also under `aliases`.
    """

    name: str
    title: str
    help: str
    type: Literal["names", "integers", "numbers", "count"]
    default: Any = None
    choices: Choices | None = None
    first: Choices | None = None
    aliases: tuple[str, ...] = ()


class Range(NamedTuple):
    """A slider's last value, and the one it begins with."""

    most: int
    first: int


def begin(pair: ModelPair, *, on: EngineName | None = None, **chosen: Any) -> GenerationSettings:
    """The settings that a pair begins with; prompt lookup proposes where it has no draft.

    `on`: the engine that pairs on this machine begin with; None: their own.
    """
    here = {} if on is None or pair.target.server is not None else {"engine": on, "policy": "constant"}
    return begun(pair.target, **here | ({} if pair.draft is not None else {"drafter": "lookup"}) | chosen)


_PROMPTS, _REPEATS, _TOKENS = Range(32, 4), Range(12, 6), Range(512, 64)


@dataclass(frozen=True)
class Kind:
    """A kind of experiment. `name` is its command's and its tab's; `tab` the tab's label, `start` its button's.

    `plan(pair, tasks, settings, repeats=…, seed=…, **options)` makes the plan. `begin(pair, **chosen)` makes the
    settings that the page begins with; `settings` the same in the terminal, None for those of one strategy, as in a
    comparison. `without` are settings that it varies itself; without `turns`, only the first of a chat is asked.
    With `compares`, another such benchmark can be given to compare with.
    `extras` is what can be measured after the rows. `limit` is the terminal's number of prompts. `charts` and
    `tables` are those of its reports, in the page's order.
    """

    name: str
    tab: str
    title: str
    explanation: str
    help: str
    start: str
    plan: Callable[..., Plan[Any, Any, Any]]
    options: tuple[Option, ...] = ()
    settings: Callable[..., GenerationSettings] | None = None
    begin: Callable[..., GenerationSettings] = begin
    turns: bool = True
    compares: bool = False
    without: Collection[str] = ()
    extras: str | None = None
    prompts: Range = _PROMPTS
    repeats: Range = _REPEATS
    tokens: Range = _TOKENS
    limit: int | None = None
    charts: tuple[str, ...] = ()
    tables: tuple[str, ...] = ("table",)
    why: str = "of every run; more narrow the intervals"
