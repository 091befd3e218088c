"""What an engine is asked to do: handed over once, and complete."""

from dataclasses import dataclass, replace
from typing import Self

from specdemo.records.base import Record
from specdemo.settings import GenerationSettings
from specdemo.ways import Plain, Way


class Turn(Record):
    """An earlier turn of a chat: what the user said, and what the target answered."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: the likeliest one, or one drawn from the distribution that these shape."""

    do_sample: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Request:
    """A prompt, the way to decode it, and when to stop. `history` holds the chat's turns before the prompt."""

    prompt: str
    way: Way
    sampling: Sampling = Sampling()
    max_new_tokens: int = 128
    ignore_eos: bool = False
    history: tuple[Turn, ...] = ()
    apply_chat_template: bool = True
    enable_thinking: bool = True
    kv_cache: bool = True
    alternatives: int = 0

    @classmethod
    def of(cls, prompt: str, settings: GenerationSettings, history: tuple[Turn, ...] = ()) -> Self:
        """The request that settings describe."""
        return cls(
            prompt=prompt,
            way=settings.way,
            sampling=Sampling(
                do_sample=settings.do_sample,
                temperature=settings.temperature,
                top_p=settings.top_p,
                top_k=settings.top_k,
                repetition_penalty=settings.repetition_penalty,
                seed=settings.seed,
            ),
            max_new_tokens=settings.max_new_tokens,
            ignore_eos=settings.ignore_eos,
            history=history,
            apply_chat_template=settings.apply_chat_template,
            enable_thinking=settings.enable_thinking,
            kv_cache=settings.kv_cache == "on",
            alternatives=settings.alternatives,
        )

    @property
    def plain(self) -> Self:
        """The same for the target alone."""
        return replace(self, way=Plain())
