"""Texts to learn from, as token files: `<domain>-train.bin` and `<domain>-held-out.bin`, 16 bits a token.

- children, novels: `<name>_pd.txt.xz`, books in the public domain, separated by `<|endoftext|>`.
- python: the standard library of the Python that runs this (PSF licence), without its tests.

What is held out is held out whole: books of the former, packages and modules of the latter.
"""

import lzma
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END = "<|endoftext|>"
PLAIN = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2014": "--", "_": None})
PIECE = 6000  # characters: what is much longer is cut, so that beginnings are learnt as well
NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib-dynload"}


def sources(domain: str, corpus: Path) -> list[str]:
    """The documents of a domain: books, or the sources of a package.

    Raises:
        SystemExit: there is no such file in `corpus`.
    """
    if domain == "python":
        return list(_python_packages())
    file = corpus / f"{domain}_pd.txt.xz"
    if not file.is_file():
        raise SystemExit(f"There is no {file}; name the folder that has it with --corpus.")
    books = lzma.decompress(file.read_bytes()).decode().split(END)
    return [_unwrapped(book.translate(PLAIN)) for book in books if book.strip()]


def _python_packages() -> Iterator[str]:
    library = Path(sysconfig.get_path("stdlib"))
    for entry in sorted(library.iterdir()):
        files = sorted(entry.rglob("*.py")) if entry.is_dir() else [entry] * (entry.suffix == ".py")
        ours = [file for file in files if not NOT_LIBRARY & set(file.relative_to(library).parts)]
        if ours:
            yield "\n\n".join(file.read_text(encoding="utf-8", errors="replace") for file in ours)


def _unwrapped(book: str) -> str:
    """A book with one line a paragraph, without headings and tables of contents."""
    paragraphs = (re.sub(r"\s+", " ", paragraph).strip() for paragraph in re.split(r"\n\s*\n", book))
    return "\n\n".join(text for text in paragraphs if len(text) >= 40 or text.endswith((".", "!", "?", '"', "'")))


def split(documents: list[str], share: float) -> tuple[list[str], list[str]]:
    """Documents to learn from and documents held out: whole ones, together at least `share` of the characters."""
    shuffled = Random(0).sample(documents, len(documents))
    wanted, held_out = share * sum(map(len, documents)), list[str]()
    while len(shuffled) > 1 and sum(map(len, held_out)) < wanted:
        held_out.append(shuffled.pop())
    return shuffled, held_out


def pieces(document: str) -> Iterator[str]:
    """A document cut between paragraphs into parts of about `PIECE` characters."""
    part, size = list[str](), 0
    for paragraph in document.split("\n\n"):
        part.append(paragraph)
        size += len(paragraph)
        if size > PIECE:
            yield "\n\n".join(part)
            part, size = [], 0
    if part:
        yield "\n\n".join(part)


def train_tokenizer(texts: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer; END begins, ends and pads."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=END, eos_token=END, pad_token=END)


def write_tokens(tokenizer: PreTrainedTokenizerFast, documents: list[str], file: Path) -> None:
    """The documents' pieces, in random order, each after the token that begins a text."""
    parts = [piece for document in documents for piece in pieces(document)]
    Random(0).shuffle(parts)
    encoded = tokenizer.backend_tokenizer.encode_batch(parts, add_special_tokens=False)
    ids = [np.array([tokenizer.bos_token_id, *each.ids], np.uint16) for each in encoded]
    np.concatenate(ids).tofile(file)


def read_tokens(file: Path) -> np.ndarray:
    """Tokens of a file that `write_tokens` wrote, not loaded before they are used."""
    return np.memmap(file, np.uint16, "r")
