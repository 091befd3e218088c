"""Whether two tokenizers are the same: by every token they know, or by examples where one cannot be listed.

GenAI reads a vocabulary from the detokenizer. Some drafts are published without one, since only the target needs it.
"""

from contextlib import suppress

import openvino_genai

from specdemo.errors import PairError

_EXAMPLES = (
    "The quick brown fox can't jump over 13 lazy dogs -- or 3.14159, can it?",
    "def f(x):\n    return {'a': [x, x ** 2]}  # Größe, 日本語, русский, 🙂\n\n\tEnd.",
    "http://example.org/path?query=UPPER&lower=mixedCase_snake_case-kebab-case",
)


def vocabulary_of(tokenizer: openvino_genai.Tokenizer) -> dict[bytes, int] | None:
    """Every token's bytes and id; None where there is no detokenizer."""
    with suppress(RuntimeError):
        vocabulary: dict[bytes, int] = tokenizer.get_vocab()
        return vocabulary
    return None


def check_tokenizers(target: openvino_genai.Tokenizer, draft: openvino_genai.Tokenizer) -> None:
    """Check that a draft can propose ids that mean the same to the target.

    Raises:
        PairError: it cannot.
    """
    ours, theirs = vocabulary_of(target), vocabulary_of(draft)
    if ours is not None and theirs is not None:
        check_vocabularies(ours, theirs)
        return
    for text in _EXAMPLES:
        if target.encode(text).input_ids.data.tolist() != draft.encode(text).input_ids.data.tolist():
            raise PairError(
                "Target and draft encode an example differently, and one has no detokenizer to translate with; "
                "choose a draft of the target's family."
            )


def check_vocabularies(target: dict[bytes, int], draft: dict[bytes, int]) -> None:
    """Check that target and draft mean the same token by every id they share, and share nearly all.

    A model may know a few added tokens that its partner lacks; an id that stands for two texts makes every
    proposal meaningless.

    Raises:
        PairError: the tokenizers differ.
    """
    by_id = {id_: text for text, id_ in target.items()}
    clash = next((id_ for text, id_ in draft.items() if by_id.get(id_, text) != text), None)
    if clash is None and len(target.keys() & draft.keys()) >= 0.95 * max(len(target), len(draft)):
        return
    detail = f"token {clash} differs" if clash is not None else f"{len(target)} tokens versus {len(draft)}"
    raise PairError(
        f"Target and draft have different tokenizers ({detail}); "
        "choose a draft of the target's family, or the traced engine."
    )
