"""Immutable values that engines produce and everything else reads: requests, models, runs, measurements.

A run is a prefill followed by rounds. Plain decoding is a run without proposals, so both sides share one counter and
one clock. Files are untrusted: the limits exceed any real run but keep every sum and ratio finite.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from itertools import accumulate
from math import log
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, computed_field

from specdemo.capabilities import ServerKind
from specdemo.settings import GenerationSettings, RuntimeSettings, Sampling, Weights
from specdemo.strategies import DraftKindName, HeadName, Parameters, Plain, Strategy

MAX_TOKENS = 2048  # in a run; also limits its rounds, and the proposals of a round
MAX_TURNS = 256  # in a chat before its prompt
MAX_LIKELIEST = 5  # alternatives to a rejected token, of either side
MAX_CONCURRENCY = 256  # requests; GenAI's own limit of sequences in a batch
TICK = 1e-9
Seconds = Annotated[float, Field(ge=TICK, le=1e6)]  # at least a clock tick, and less than two weeks
Share = Annotated[float, Field(ge=0, le=1e6)]  # seconds of a part; may be 0
Probability = Annotated[float, Field(ge=0, le=1.01)]  # a sum of rounded terms can slightly exceed 1
Count = Annotated[int, Field(ge=0, lt=2**53)]  # browsers represent these exactly


class Record(BaseModel):
    """Base of all records: frozen and finite; reading JSON ignores derived extras."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


# What decodes: models with their runtime settings, or servers.

SILENCE_SECONDS = 60.0  # after this long without data, a server counts as silent


class Server(Record):
    """`model` may be None if the server has only one, and `kind` None to detect it."""

    url: str
    model: str | None = None
    kind: ServerKind | None = None
    silence_seconds: float = SILENCE_SECONDS


class Servers(Record):
    plain: Server | None = None
    speculative: Server | None = None


Prompts = Literal["chat", "base"]  # what a target continues: a chat, or the beginning of a text


class Model(Record):
    """A model folder or file; None means unknown when the record was written.

    `parameters` counts weights; `weights` is their precision. A `head` drafts from the target's hidden
    states and may lack some of its tokens. `server`: its server's kind. `form`: how a GGUF file's weights are loaded.
    """

    name: str
    architecture: str
    parameters: Count
    weights: str
    context_length: Count | None = None
    weight_bytes: Count | None = None
    vocabulary: Count | None = None
    chat_template: bool = False
    head: HeadName | None = None
    server: ServerKind | None = None
    form: Weights = "auto"
    path: Path | None = Field(None, exclude=True, repr=False)  # never leaves this machine

    @property
    def prompts(self) -> Prompts:
        return "chat" if self.chat_template else "base"


class ModelPair(Record):
    """Without a draft: prompt lookup only. `translated`: tokenizers differ, so proposals are re-encoded."""

    name: str
    target: Model
    draft: Model | None = None
    runtime: RuntimeSettings = RuntimeSettings()
    translated: bool = False
    servers: Servers | None = Field(None, exclude=True, repr=False)  # addresses never leave this machine

    @property
    def head(self) -> HeadName | None:
        return self.draft.head if self.draft is not None else None

    @property
    def draft_kind(self) -> DraftKindName | None:
        if self.draft is None:
            return None
        if self.target.server is not None:
            return "server"
        return self.draft.head or ("translated" if self.translated else "model")


class Environment(Record):
    """`threads` are inference threads, on CPUs only. `dynamic_quantization` of the target's activations is "off" or
    the group size, as in "groups of 32".
    """

    specdemo: str
    python: str
    openvino: str
    openvino_genai: str
    openvino_tokenizers: str
    device: str
    draft_device: str
    inference_precision: str
    kv_cache_precision: str
    dynamic_quantization: str = "unknown"
    threads: Count | None


# Requests.


class Turn(Record):
    prompt: str
    answer: str


@dataclass(frozen=True)
class Request:
    prompt: str
    strategy: Strategy
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 128
    ignore_eos: bool = False
    history: tuple[Turn, ...] = ()
    apply_chat_template: bool = True
    system_prompt: str = ""
    enable_thinking: bool = True
    kv_cache: bool = True

    @classmethod
    def of(cls, prompt: str, settings: GenerationSettings, history: tuple[Turn, ...] = ()) -> Self:
        """Return a request with the settings of its fields' names."""
        names = {field.name for field in fields(cls)} - {"prompt", "history"}
        shared: dict[str, Any] = {name: getattr(settings, name) for name in names}
        return cls(prompt=prompt, history=history, **shared | {"kv_cache": settings.kv_cache == "on"})

    @property
    def plain(self) -> Self:
        return replace(self, strategy=Plain())

    @property
    def messages(self) -> list[dict[str, str]]:
        parts = [("system", self.system_prompt)] if self.system_prompt else []
        for turn in self.history:
            parts += [("user", turn.prompt), ("assistant", turn.answer)]
        return [{"role": role, "content": text} for role, text in [*parts, ("user", self.prompt)]]


# Runs, and comparisons of two.

# end of text, token limit, the user's Stop, an error, no server
FinishReason = Literal["stop", "length", "cancelled", "failed", "absent"]

Side = Literal["plain", "speculative"]
SIDES: tuple[Side, Side] = ("plain", "speculative")


class Outcome(StrEnum):
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    DISCARDED = "discarded"


class Alternative(Record):
    """A token that could have been chosen, with its probability."""

    id: Count
    text: str
    probability: Probability


class Token(Record):
    """`probability` is the target's, `entropy` of its distribution in bits; `id` is None if a server reports none."""

    id: Count | None
    text: str
    probability: Probability | None = None
    entropy: float | None = Field(None, ge=-0.01, le=64)  # rounded, like a probability


class DraftToken(Record):
    """`id` is None if only the number of proposals was reported. `copied` from the text so far, not drafted. A
    rejected one has the likeliest tokens of both distributions, if they are known.
    """

    id: Count | None
    text: str
    outcome: Outcome
    copied: bool = False
    draft_probability: Probability | None = None
    target_probability: Probability | None = None
    draft_likeliest: tuple[Alternative, ...] = Field((), max_length=MAX_LIKELIEST)
    target_likeliest: tuple[Alternative, ...] = Field((), max_length=MAX_LIKELIEST)


class Round(Record):
    """One cycle: the draft proposes, the target verifies in one pass, tokens are committed. `proposed` is None if not
    even the number of proposals was reported. Seconds are on the side's own clock.
    """

    committed: tuple[Token, ...] = Field(max_length=MAX_TOKENS)
    seconds: Seconds
    proposed: tuple[DraftToken, ...] | None = Field((), max_length=MAX_TOKENS)
    draft_seconds: Share | None = None
    verify_seconds: Share | None = None

    @property
    def ids(self) -> list[int]:
        """Ids of the committed tokens, without unreported ones."""
        return [token.id for token in self.committed if token.id is not None]

    @property
    def accepted(self) -> int:
        """Number of accepted proposals; if unreported, of committed tokens without the correction or bonus token."""
        if self.proposed is None:
            return max(len(self.committed) - 1, 0)
        return sum(token.outcome is Outcome.ACCEPTED for token in self.proposed)

    @property
    def contradicts_itself(self) -> bool:
        """Whether outcomes are in an order that no verification gives, or more are accepted than committed."""
        outcomes = [token.outcome for token in self.proposed or ()]
        possible = [outcomes_from_counts(len(outcomes), self.accepted, ended=ended) for ended in (False, True)]
        return bool(outcomes) and (outcomes not in possible or self.accepted > len(self.committed))


def outcomes_from_counts(proposed: int, accepted: int, *, ended: bool = False) -> list[Outcome]:
    """Return the outcomes of proposals; if the text `ended` within them, those after its end are unjudged."""
    unaccepted = [Outcome.DISCARDED if ended else Outcome.REJECTED, *[Outcome.DISCARDED] * (proposed - accepted - 1)]
    return [Outcome.ACCEPTED] * accepted + unaccepted[: proposed - accepted]


def outcomes_from_ids(
    proposed: Sequence[int], committed: Sequence[int], *, ended: bool = False
) -> list[Outcome] | None:
    """Return the outcomes of a round's proposals, or None if they cannot have led to its committed tokens.

    A correction token differs from the rejected one: by definition in greedy decoding, and in sampling because
    max(0, p − q) is 0 where a proposal can be rejected. A round that `ended` the run may commit none, after an
    accepted end-of-text token.
    """
    accepted = 0
    while accepted < min(len(proposed), len(committed)) and proposed[accepted] == committed[accepted]:
        accepted += 1
    ended = ended and accepted == len(committed)
    if not ended and accepted != len(committed) - 1:
        return None
    return outcomes_from_counts(len(proposed), accepted, ended=ended)


class DraftCounts(Record):
    """A server's totals over rounds that proposed something, of which `by_position[i]` accepted more than i tokens.
    `of_server`: counts of all its requests together.
    """

    rounds: Count
    proposed: Count
    accepted: Count
    by_position: tuple[Count, ...] = Field((), max_length=MAX_TOKENS)
    of_server: bool = False

    def passes(self, tokens: int) -> int:
        """Return the target passes behind this many tokens after the first. Of those accepted in the last pass, some
        may lie behind the end of the text.
        """
        return min(max(tokens - self.accepted, self.rounds), tokens)


class Run(Record):
    """One side of a comparison. `prefill` commits the first token; its seconds are the time to first token.

    `prompt_tokens` include chat and template. If `passes_known` is False, a server did not report which tokens came
    from one pass, and a round is what arrived together. `hidden_tokens` were counted by a server but never sent, such
    as thoughts; the time to first token includes those before the text.
    """

    prefill: Round
    rounds: tuple[Round, ...] = Field((), max_length=MAX_TOKENS)
    finish_reason: FinishReason
    passes_known: bool = True
    prompt_tokens: Count | None = None
    draft_counts: DraftCounts | None = None
    hidden_tokens: Count = 0

    @classmethod
    def without(cls, reason: Literal["failed", "absent", "cancelled"]) -> Self:
        """Return a run without tokens, whose prefill time means nothing."""
        return cls(prefill=Round(committed=(), seconds=TICK), finish_reason=reason)

    @property
    def tokens(self) -> tuple[Token, ...]:
        return tuple(token for step in (self.prefill, *self.rounds) for token in step.committed)

    @property
    def passes(self) -> int | None:
        """Number of target passes after the prefill; None if unknown."""
        if self.passes_known:
            return len(self.rounds)
        decoded = len(self.tokens) - 1 + self.hidden_tokens
        return self.draft_counts.passes(decoded) if self.draft_counts is not None else None

    @property
    def token_ids(self) -> tuple[int, ...]:
        return (*self.prefill.ids, *(id_ for step in self.rounds for id_ in step.ids))

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)


class WarmUp(Record):
    """`steady` is False if time ran out while repetitions were still getting faster."""

    rounds: Count
    seconds: Share
    steady: bool


class SettingsUpdate(Record):
    """Settings changed during a run, with their new values, effective from this round of the speculative side on."""

    round: int = Field(ge=1, le=MAX_TOKENS)
    values: dict[str, Count | Probability] = Field(max_length=len(Parameters.model_fields))

    @computed_field  # type: ignore[prop-decorator]
    @property
    def label(self) -> str:
        titles = {name: field.title or name for name, field in Parameters.model_fields.items()}
        return ", ".join(f"{titles[name].lower()} {value:g}" for name, value in self.values.items() if name in titles)


_RESOLUTION = 5e-4  # of a log-probability in f32, where kernels differ
_MIN_PROBABILITY = 1e-12  # smaller ones are rounding


class Divergence(Record):
    """The first token in which greedy outputs differ, on each side, with its probability from one pass of the target
    over the common text, off the clock. `rounding` is the largest difference in log-probability between a pass over
    several tokens and passes over one, measured on the text before it.
    """

    index: Count
    plain: Alternative
    speculative: Alternative
    rounding: Share

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains the divergence: each probability may be off by as much as was measured."""
        plain, speculative = (max(token.probability, _MIN_PROBABILITY) for token in (self.plain, self.speculative))
        return abs(log(plain / speculative)) <= max(2 * self.rounding, _RESOLUTION)


_TYPICAL_LOOKAHEAD = 4  # `draft_step` is the average of a round with this many proposals


def _rising(values: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(accumulate(values, max))


class Costs(Record):
    """Step costs of a pair in seconds, by a round's number of proposals γ, as races spend them.

    `verify[γ]`: the target's pass over γ + 1 tokens and the choice among them, so `verify[0]` is a plain step;
    `drafting[γ]`: the draft model's part, empty without one. A validator makes both non-decreasing.
    `other_load` is the share of the processor that other processes took.
    """

    verify: Annotated[tuple[Seconds, ...], AfterValidator(_rising)] = Field(min_length=1, max_length=MAX_TOKENS)
    drafting: Annotated[tuple[Share, ...], AfterValidator(_rising)] = Field((), max_length=MAX_TOKENS)
    other_load: Probability | None = None

    @computed_field  # type: ignore[prop-decorator]  # pydantic's own form
    @property
    def plain_step(self) -> float:
        return self.verify[0]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def draft_step(self) -> float | None:
        lookahead = min(_TYPICAL_LOOKAHEAD, len(self.drafting) - 1)
        return self.drafting[lookahead] / lookahead if lookahead > 0 else None

    def round_cost(self, lookahead: int, *, free: bool = False) -> float | None:
        """d(γ) + v(γ+1): seconds of a round with γ proposals / seconds of a plain step.

        None beyond what was measured, or without a draft, unless proposals are `free`.
        """
        if lookahead >= len(self.verify) or (lookahead and not free and lookahead >= len(self.drafting)):
            return None
        drafting = self.drafting[lookahead] if lookahead and not free else 0.0
        return (drafting + self.verify[lookahead]) / self.verify[0]


class Trial(Record):
    """One speculative run and its plain neighbours; None where the engine does not report a value.

    `seconds` and `plain_seconds`, the mean of both neighbours, are for the same number of new `tokens`, prefill
    excluded. `plain_steps` has the seconds of every plain step; `round_steps` the tokens committed, tokens proposed
    (-1 if unknown) and seconds of every round. Both are empty for several requests at once.
    """

    tokens: Count
    seconds: Seconds
    plain_seconds: Seconds
    identical: bool
    rounds: Count | None
    run_tokens: Count
    proposed: Count | None = None
    accepted: Count | None = None
    other_load: Probability | None = None
    plain_steps: tuple[tuple[Seconds, ...], ...] = Field((), max_length=2)
    round_steps: tuple[tuple[Count, int, Seconds], ...] = Field((), max_length=MAX_TOKENS)

    @property
    def passes(self) -> int | None:
        """Target passes after the prefill. If `rounds` are unknown, tokens minus accepted ones; None without both."""
        if self.rounds is not None or self.accepted is None:
            return self.rounds
        return max(self.run_tokens - self.accepted, 1)


# How a run's proposals are known. "measured": recorded while decoding. "replayed": recomputed off the clock, by
# running the drafter over the committed text. "counts only": just their number. From a server, "reported": the tokens
# of each round, perhaps also its proposals; "bursts": only which text arrived together.
TraceSource = Literal["measured", "replayed", "counts only", "reported", "bursts"]


class Comparison(Record):
    """Both sides of one prompt.

    `repeats` are unwatched runs of the request after the race; `other_load`
    is the share of the processor that other processes took during the race. `failures` are errors of servers.
    """

    pair: ModelPair
    prompt: str
    settings: GenerationSettings
    environment: Environment
    plain: Run
    speculative: Run
    trace_source: TraceSource
    costs: Costs | None = None
    history: tuple[Turn, ...] = Field((), max_length=MAX_TURNS)
    warm_up: dict[Side, WarmUp] | None = None
    repeats: tuple[Trial, ...] = Field((), max_length=MAX_TOKENS)
    settings_updates: tuple[SettingsUpdate, ...] = Field((), max_length=MAX_TOKENS)
    other_load: Probability | None = None
    failures: dict[Side, str] = Field(default_factory=dict)
    divergence: Divergence | None = None

    @property
    def both_ran(self) -> bool:
        return bool(self.plain.tokens and self.speculative.tokens)

    def side(self, side: Side) -> Run:
        return self.plain if side == "plain" else self.speculative


# Progress of work.

F = TypeVar("F")


@dataclass(frozen=True)
class Progress(Generic[F]):
    """`done` of `total` parts, the `result` so far, and an estimate of `seconds_left`, None at first. The work stops
    after `limit` seconds even if parts are left.
    """

    done: int
    total: int
    seconds_left: float | None
    result: F
    doing: str = "measuring"
    limit: float | None = None


@dataclass(frozen=True)
class Phase:
    """What an engine does while it is not decoding; `done` of `total` parts, if several."""

    name: Literal["converting", "loading", "calibrating", "warming up", "prefilling"]
    done: int = 0
    total: int = 0
    seconds: float = 0.0


class Slice(Record):
    """The rounds of one side in one turn; a side's first slice is its prefill, a single round."""

    side: Side
    rounds: tuple[Round, ...]
    finish_reason: FinishReason | None
    trace_source: TraceSource
    settings_updates: tuple[SettingsUpdate, ...] = ()
