"""Why a decoding strategy is refused: by every engine, or for one pair."""

from specdemo.strategies import (
    KINDS,
    AsServed,
    DraftKind,
    EngineName,
    Lookup,
    Plain,
    Planned,
    Strategy,
    Tree,
    proposes,
)


def refusal(strategy: Strategy, engine: EngineName, *, sampling: bool = False, kv_cache: bool = True) -> str | None:
    """Why no pair can be decoded that way, in terms of the settings that name it; None if some pair can."""
    if isinstance(strategy, Plain | Planned):
        return None
    kind = KINDS[type(strategy)]
    if isinstance(strategy, Tree):
        what = "a tree of proposals (tree_depth above 0)"
    else:
        what = "drafter both" if kind.drafter == "both" else f"policy {kind.policy}"
    if kind.costs and not kv_cache:
        return f"{what} needs the step costs of a KV cache, so kv_cache must be on"
    if engine not in kind.engines:
        return f"the {engine} engine does not support {what}; choose the {kind.engines[0]} engine"
    if sampling and not kind.sampling:
        return f"{what} needs greedy decoding; set do_sample to False"
    if isinstance(strategy, Tree) and strategy.lookahead < strategy.depth:
        return "a tree needs a lookahead of at least its depth; raise num_assistant_tokens"
    return None


def pair_refusal(
    strategy: Strategy, draft: DraftKind | None, engine: EngineName, *, sampling: bool = False, penalty: bool = False
) -> str | None:
    """Why a pair with such a draft cannot be decoded that way; None if it can. `penalty`: on tokens a head may lack.

    With an EAGLE-3 head, GenAI 2026.4 refuses a confidence threshold in `generate()` and silently ignores it
    when stepped. It ignores a repetition penalty in trees; in chains it fails on prompt tokens that the head lacks.
    """
    if isinstance(strategy, Plain | Planned) or draft is None:
        return None
    if draft == "server" and not isinstance(strategy, AsServed):
        return "This server was told how to speculate when it was started; choose policy server."
    if isinstance(strategy, AsServed) and draft != "server":
        return "Policy server is for servers that are not told in a request how to speculate; choose policy constant."
    if isinstance(strategy, Lookup):
        return None
    if draft == "translated" and sampling:
        return "A draft with a different tokenizer works in greedy decoding only; switch sampling off."
    if isinstance(strategy, Tree) and draft != "eagle3":
        return "Only an EAGLE-3 head can propose trees; set tree_depth to 0, or choose such a draft."
    kind = KINDS[type(strategy)]
    if draft not in kind.drafts and kind.drafter == "both":
        return "Both sources need a draft with the target's tokenizer; choose drafter model or lookup."
    if not proposes(kind, engine, draft):
        return (
            f"With an EAGLE-3 head the {engine} engine does not support a confidence threshold; "
            "choose the constant policy, or the traced engine."
        )
    if draft == "eagle3" and engine == "genai" and penalty:
        return (
            "With this EAGLE-3 head the genai engine does not support a repetition penalty; "
            "set repetition_penalty to 1, or choose the traced engine."
        )
    return None
