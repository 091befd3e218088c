"""The seam between engines and everything else.

Stepping, rather than a callback, gives each round a clock of its own, lets a run stop within one round, and
makes a race possible: two decoders, advanced by turns.
"""

from collections.abc import Generator, Sequence
from typing import NamedTuple, Protocol

from specdemo.records import Costs, DraftRound, Environment, FinishReason, ModelPair, Round, TraceSource, Turn
from specdemo.settings import GenerationSettings

PREFILL_CHUNK = 512
"""Tokens of a long prompt that are read at once. Larger parts were not faster, and say less of how far it is."""


class Prefilling(NamedTuple):
    """How many of a prompt's tokens are read."""

    done: int
    total: int


class Decoder(Protocol):
    """One request at a time, one round at a time."""

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the request ended, or None while it goes on."""

    @property
    def trace_source(self) -> TraceSource:
        """How the proposals in this request's rounds are known."""

    def start(
        self, prompt: str, settings: GenerationSettings, history: Sequence[Turn] = ()
    ) -> Generator[Prefilling, None, Round]:
        """Tokenise and prefill, yielding in between. The round returned commits the first token; its seconds
        exclude tokenising.

        Raises:
            PromptError: the prompt is empty, or too long for the model.
            RunError: the engine could not go on.
        """

    def step(self) -> Round:
        """Do exactly one round. Only while `finish_reason` is None.

        Raises:
            RunError: the engine could not go on.
        """

    def trace(self, rounds: Sequence[Round]) -> list[Round]:
        """The request's next rounds, in order, with all the engine can find out about them off the clock."""

    def draft_agreement(self) -> tuple[bool, ...] | None:
        """For each token after the prefill's, whether the draft would have proposed it given the text before it.

        Found off the clock. None where a draft has no one choice: in sampling, and without a draft model.
        """

    def close(self) -> None:
        """Free the request, finished or not. A closed decoder can be started again."""


class Engine(Protocol):
    """A loaded pair and its decoders."""

    @property
    def pair(self) -> ModelPair:
        """What is loaded."""

    @property
    def environment(self) -> Environment:
        """What figures are measured on."""

    def plain(self) -> Decoder:
        """A decoder of the target alone."""

    def speculative(self, settings: GenerationSettings, costs: Costs | None = None) -> Decoder:
        """A decoder with the drafter these settings name. The automatic lookahead needs the pair's step costs.

        Raises:
            PairError: the pair has no draft, and the settings ask for one.
        """

    def count_tokens(self, text: str) -> int:
        """Number of the target's tokens that this text is."""

    def pass_seconds(self, prompt: str, *tokens: int) -> Generator[float]:
        """Seconds of one target pass over so many tokens after another, at a text about as long as the prompt.

        Several numbers take turns; an engine that cannot do that yields nothing then.
        """

    def draft_rounds(self, prompt: str, lookahead: int) -> list[DraftRound]:
        """What the draft takes for so many proposals in each of some rounds; empty without a draft.

        A draft on its own is faster: there no target pass evicts its weights from the caches.
        """

    def close(self) -> None:
        """Free all models."""


def prefilled(decoder: Decoder, prompt: str, settings: GenerationSettings) -> Round:
    """Start a request and see its prefill through."""
    prefill = decoder.start(prompt, settings)
    while True:
        try:
            next(prefill)
        except StopIteration as end:
            result: Round = end.value
            return result


def steps(decoder: Decoder, prompt: str, settings: GenerationSettings) -> Generator[Round]:
    """The rounds of one decoder on its own, the prefill first; frees the request at the end."""
    try:
        yield prefilled(decoder, prompt, settings)
        while decoder.finish_reason is None:
            yield decoder.step()
    finally:
        decoder.close()
