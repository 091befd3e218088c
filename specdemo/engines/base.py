"""The interface between engines and everything else: one request at a time, or a batch of several.

A request is decoded by a generator of rounds. Unlike a callback, this gives each request its own clock, lets a run
stop within one round, and makes races possible: two generators, advanced alternately. A batch's clock is this
process's, the arrival times of a server's chunks or, in tests, a simulated one.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from specdemo.capabilities import ENGINES, EngineName
from specdemo.errors import PromptError, SettingsError
from specdemo.files import is_text
from specdemo.records import (
    MAX_TOKENS,
    MAX_TURNS,
    SIDES,
    Costs,
    DraftToken,
    Environment,
    FinishReason,
    ModelPair,
    Request,
    Round,
    Run,
    Side,
    Token,
    TraceSource,
    outcomes_from_counts,
)
from specdemo.strategies import Strategy

PREFILL_CHUNK = 512  # prompt tokens at once; larger chunks were no faster and make progress coarser


@dataclass(frozen=True)
class Thoroughness:
    repetition_seconds: float = 0.15  # of a warm-up repetition, on the side's own clock
    steady: int = 2  # consecutive repetitions without a notable gain before a side counts as steady
    cold_seconds: float = 0.6  # minimum warm-up before an engine's first race, on each side's own clock
    warm_seconds: float = 60  # how long a side stays warm after it was steady
    repeats: int = 20  # maximum repeats of a race if no number is given; more would hardly narrow the interval
    fixed_lengths: bool = True  # the traced engine compiles passes by length, which takes seconds and memory
    load_seconds: float = 0.1  # of all cores, for a sample of other load: the system counts in hundredths


THOROUGH = Thoroughness()


class Prefill(NamedTuple):
    """In prompt tokens."""

    done: int
    total: int


class Decoder(ABC):
    finish_reason: FinishReason | None = None  # None while it runs
    trace_source: TraceSource = "measured"
    prompt_tokens: int | None = None  # once it is known

    @abstractmethod
    def rounds(self) -> Generator[Prefill | Round]:
        """Tokenise and prefill, yielding progress, then yield one round at a time. Call once.

        The first round is the prefill, whose seconds exclude tokenising. Closing the generator frees the request.

        Raises:
            PromptError: the prompt is empty, or too long for the model.
            RunError: the engine could not continue.
        """

    def with_proposals(self, rounds: Sequence[Round]) -> list[Round]:
        """Return the request's next rounds, in order, with details that the engine computes off the clock."""
        return list(rounds)

    def finalized(self, run: Run) -> Run:
        return run.model_copy(update={"prompt_tokens": self.prompt_tokens})

    def update_strategy(self, strategy: Strategy) -> bool:
        """Switch strategy from the next round on; return False, changing nothing, if that needs a new request."""
        return False


class Engine(ABC):
    name: EngineName
    pair: ModelPair
    environment: Environment
    sides: tuple[Side, ...] = SIDES
    thoroughness: Thoroughness = THOROUGH

    @property
    def local(self) -> bool:
        """Whether it decodes in this process. Servers do not pause between rounds, so sides cannot take turns."""
        return ENGINES[self.name].local

    @abstractmethod
    def decoder(self, request: Request, costs: Costs | None = None) -> Decoder:
        """Return a decoder; the automatic lookahead needs costs. Raises PairError and SettingsError."""

    def batch(self, strategy: Strategy) -> "Batch":
        """Return an empty batch, one at a time. Raises PairError and SettingsError."""
        raise SettingsError("This engine serves one request at a time; choose another.")

    def pass_seconds(self, prompt: str, tokens: int) -> Generator[float]:
        """Yield the seconds of target passes over this many tokens after the prompt; nothing if unknown."""
        yield from ()

    def log_probabilities(
        self, request: Request, before: Sequence[int], tokens: Sequence[int], *, one_by_one: bool
    ) -> list[float] | None:
        """Return the target's log-probability of each token after prompt and `before`; None if unknown.

        A pass reads all tokens or, if `one_by_one`, a single one: kernels differ, and so does their rounding.
        """
        return None

    @abstractmethod
    def close(self) -> None: ...


def rounds_of(decoder: Decoder) -> Generator[Round]:
    """Yield a decoder's rounds without prefill progress. Closing it frees the request."""
    with closing(decoder.rounds()) as steps:
        for step in steps:
            if isinstance(step, Round):
                yield step


def counted_drafts(committed: Sequence[Token], proposed: int | None, accepted: int) -> tuple[DraftToken, ...] | None:
    """Return a round's proposals from their numbers; None if unknown. Accepted ones are the committed tokens.
    ValueError: the numbers are impossible.
    """
    if proposed is None:
        return None
    if not 0 <= accepted <= proposed <= MAX_TOKENS:
        raise ValueError(f"{accepted} of {proposed} proposals")
    accepted = min(accepted, len(committed))
    tokens = [*committed[:accepted], *[Token(id=None, text="")] * (proposed - accepted)]
    outcomes = outcomes_from_counts(proposed, accepted, ended=accepted == len(committed))
    return tuple(
        DraftToken(id=token.id, text=token.text, outcome=outcome)
        for token, outcome in zip(tokens, outcomes, strict=True)
    )


def check_prompt(request: Request) -> None:
    """Raise a `PromptError` if the prompt is empty or no valid text, or the chat has too many turns."""
    if not request.prompt.strip():
        raise PromptError("The prompt is empty; type one first.")
    if len(request.history) > MAX_TURNS:
        raise PromptError(f"The chat has more than {MAX_TURNS} turns; start a new chat.")
    if request.system_prompt and not request.apply_chat_template:
        raise PromptError("A system prompt needs the chat template; switch it on, or leave the system prompt out.")
    if not all(is_text(message["content"]) for message in request.messages):
        raise PromptError("The prompt is not text: it holds characters that are not valid Unicode; enter it again.")


class RoundCounts(NamedTuple):
    """Numbers of tokens proposed (None if unknown) and accepted in a round of one request."""

    proposed: int | None
    accepted: int


class Arrival(NamedTuple):
    """Tokens that arrived for request `number` at time `at` of the batch's clock; the first arrival ends its TTFT.

    `tokens` may be an estimate, which the last arrival corrects in either direction. `output` holds the token ids, or
    the text if ids are not reported. `rounds` are the target passes it covers except the prefill, None if unknown; an
    engine may report them all at the end.
    """

    number: int
    at: float
    tokens: int
    output: tuple[int, ...] | str
    rounds: tuple[RoundCounts, ...] | None = None
    finish_reason: FinishReason | None = None


class Batch(Protocol):
    receives_passes: bool  # whether each `receive` covers exactly one target pass

    def now(self) -> float:
        """Return the seconds on this batch's clock."""

    def submit(self, number: int, request: Request) -> None: ...

    def receive(self) -> Sequence[Arrival]:
        """Return the next arrivals of any request, or nothing after a short wait."""

    def close(self) -> None:
        """Cancel the requests in flight. Call once."""
