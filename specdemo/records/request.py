"""What an engine is asked to do: handed over once, and complete."""

from dataclasses import dataclass, field, replace
from typing import Literal, Self

from specdemo.records.base import Record
from specdemo.settings import GenerationSettings, Sampling
from specdemo.strategies import Plain, Strategy

MOST_TURNS = 256
"""Turns of a chat before its prompt, at most."""


class Turn(Record):
    """An earlier turn of a chat: what the user said, and what the target answered."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Request:
    """A prompt, the strategy to decode it, and when to stop. `history` holds the chat's turns before the prompt."""

    prompt: str
    strategy: Strategy
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 128
    ignore_eos: bool = False
    history: tuple[Turn, ...] = ()
    apply_chat_template: bool = True
    enable_thinking: bool = True
    kv_cache: bool = True
    alternatives: int = 0
    verification: Literal["token", "block"] = "token"

    @classmethod
    def of(cls, prompt: str, settings: GenerationSettings, history: tuple[Turn, ...] = ()) -> Self:
        """The request that settings describe."""
        return cls(
            prompt=prompt,
            strategy=settings.strategy,
            sampling=settings.sampling,
            max_new_tokens=settings.max_new_tokens,
            ignore_eos=settings.ignore_eos,
            history=history,
            apply_chat_template=settings.apply_chat_template,
            enable_thinking=settings.enable_thinking,
            kv_cache=settings.kv_cache == "on",
            alternatives=settings.alternatives,
            verification=settings.verification,
        )

    @property
    def plain(self) -> Self:
        """The same for the target alone."""
        return replace(self, strategy=Plain())
