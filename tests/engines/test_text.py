from hypothesis import given
from hypothesis import strategies as st

from specdemo.engines.text import REPLACEMENT, IncrementalText, token_texts


def decode(tokens: list[int]) -> str:
    """A tokenizer of bytes."""
    return bytes(tokens).decode(errors="replace")


@given(st.text(), st.text())
def test_texts_of_tokens_join_to_the_text(prompt: str, text: str) -> None:
    pieces = IncrementalText(decode, prompt.encode())
    assert "".join([*(pieces.push(token) for token in text.encode()), pieces.flush()]) == text


@given(st.binary())
def test_invalid_bytes_are_kept(data: bytes) -> None:
    pieces = IncrementalText(decode)
    joined = "".join([*(pieces.push(token) for token in data), pieces.flush()])
    assert joined.replace(REPLACEMENT, "") == data.decode(errors="replace").replace(REPLACEMENT, "")


def test_a_character_belongs_to_the_token_that_completes_it() -> None:
    pieces = IncrementalText(decode)
    assert [pieces.push(token) for token in "ä🦊".encode()] == ["", "ä", "", "", "", "🦊"]


def test_a_proposal_that_ends_inside_a_character_is_shown_as_such() -> None:
    assert token_texts(decode, b"M", "är".encode()) == [REPLACEMENT, "ä", "r"]
