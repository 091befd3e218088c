"""What there is to choose from besides strategies: engines, kinds of draft, kinds of server. Each declares itself.

Controls, checks, the wording of results and the docs' tables follow from these declarations.
"""

from dataclasses import dataclass
from typing import Literal

EngineName = Literal["genai", "traced", "served"]
DraftKindName = Literal["model", "translated", "eagle3", "dflash", "mtp", "server", "request"]
ServerKind = Literal["llama.cpp", "vllm", "ovms", "sglang", "openai"]
"""Servers whose answers are understood; "openai" is any other that speaks OpenAI's protocol."""

SERVERS: dict[ServerKind, str] = {
    "llama.cpp": "llama.cpp",
    "vllm": "vLLM",
    "ovms": "OpenVINO Model Server",
    "sglang": "SGLang",
    "openai": "an OpenAI-compatible server",
}
"""Their names in a sentence."""


@dataclass(frozen=True)
class EngineInfo:
    """An engine: what it is called, and what it cannot do.

    `label` names it among choices, `words` in a sentence. `lacks`: the settings that have no meaning there.
    `concurrent`: it serves several requests at once. `local`: models are loaded on this machine.
    """

    name: EngineName
    label: str
    words: str
    lacks: frozenset[str]
    concurrent: bool = False
    local: bool = True


ENGINES: dict[EngineName, EngineInfo] = {
    engine.name: engine
    for engine in (
        EngineInfo(
            "genai",
            label="OpenVINO GenAI",
            words="GenAI engine",
            lacks=frozenset(
                {"kv_cache", "alternatives", "max_assistant_tokens", "verification", "at_once"}
            ),  # its drafts have no cap
            concurrent=True,
        ),
        EngineInfo(
            "traced",
            label="Traced: specdemo's own loop",
            words="traced engine",
            lacks=frozenset({"at_once"}),
        ),
        EngineInfo(
            "served",
            label="A server",
            words="served engine",
            # its drafts have no cap
            lacks=frozenset({"kv_cache", "alternatives", "max_assistant_tokens", "verification", "sequential"}),
            concurrent=True,
            local=False,
        ),
    )
}
"""All engines, in the order in which they are offered."""

LOCAL: tuple[EngineName, ...] = tuple(name for name, engine in ENGINES.items() if engine.local)
CONCURRENT: tuple[EngineName, ...] = tuple(name for name, engine in ENGINES.items() if engine.concurrent)


def supports(engine: EngineName, setting: str) -> bool:
    """Whether a setting has a meaning on an engine."""
    return setting not in ENGINES[engine].lacks


def engines_with(setting: str) -> tuple[EngineName, ...]:
    """The engines on which a setting has a meaning."""
    return tuple(engine for engine in ENGINES if supports(engine, setting))


PARTIAL = frozenset[str]().union(*(engine.lacks for engine in ENGINES.values()))
"""Settings that have no meaning on some engine."""


@dataclass(frozen=True)
class DraftKind:
    """A kind of draft: which engines can load it, and what it is.

    `greedy`: why it cannot propose for a target that samples, in a sentence; None if it can.
    """

    name: DraftKindName
    what: str
    engines: tuple[EngineName, ...]
    greedy: str | None = None


DRAFT_KINDS: dict[DraftKindName, DraftKind] = {
    kind.name: kind
    for kind in (
        DraftKind("model", "a model with the target's tokenizer", LOCAL),
        DraftKind(
            "translated",
            "a model with another tokenizer, whose text is encoded anew for the target",
            ("traced",),
            greedy="A draft with a different tokenizer works in greedy decoding only; switch sampling off.",
        ),
        DraftKind("eagle3", "an EAGLE-3 head, which reads the target's hidden states", LOCAL),
        DraftKind(
            "dflash",
            "a DFlash draft, which proposes a whole round in one pass from the target's hidden states",
            ("genai",),
            greedy="A DFlash draft works in greedy decoding only; switch sampling off.",
        ),
        DraftKind("mtp", "a multi-token-prediction head, which no engine here can load", ()),
        DraftKind("server", "that of a server that speculates as configured at its start", ("served",)),
        DraftKind("request", "that of a server that is asked in each request how to speculate", ("served",)),
    )
}
"""All kinds of draft."""
