"""GGUF headers as an attacker would write them: valid ones, changed entry by entry or byte by byte."""

import struct
from collections.abc import Iterator
from random import Random
from typing import Any

UINT32, INT32, FLOAT32, STRING, ARRAY, UINT64, FLOAT64 = 4, 5, 6, 8, 9, 10, 12
FORMS = {UINT32: "<I", INT32: "<i", FLOAT32: "<f", UINT64: "<Q", FLOAT64: "<d"}
Entry = tuple[str, int, Any]  # key, number of its type, value; of an array, (type, length, bytes)
Row = tuple[str, tuple[int, ...], int, int]  # a tensor's name, shape, number of its type, offset

ENTRIES: tuple[Entry, ...] = (
    ("general.architecture", STRING, "llama"),
    ("general.alignment", UINT32, 32),
    ("split.count", UINT32, 1),
    ("llama.context_length", UINT32, 512),
    ("llama.embedding_length", UINT32, 32),
    ("llama.attention.head_count", UINT32, 4),
    ("llama.attention.head_count_kv", UINT32, 2),
    ("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
    ("llama.rope.freq_base", FLOAT32, 1e4),
    ("tokenizer.ggml.eos_token_id", UINT32, 2),
    ("tokenizer.chat_template", STRING, "{{ messages }}"),
    ("tokenizer.ggml.model", STRING, "gpt2"),
    ("tokenizer.ggml.tokens", ARRAY, (STRING, 2, struct.pack("<Q", 1) + b"a" + struct.pack("<Q", 2) + b"aa")),
    ("tokenizer.ggml.merges", ARRAY, (STRING, 1, struct.pack("<Q", 3) + b"a a")),
)
ROWS: tuple[Row, ...] = (("token_embd.weight", (32, 4), 0, 0), ("output_norm.weight", (32,), 0, 512))
DATA = bytes(1024)


def header(
    entries: tuple[Entry, ...] = ENTRIES,
    rows: tuple[Row, ...] = ROWS,
    *,
    version: int = 3,
    tensors: int | None = None,
    count: int | None = None,
) -> bytes:
    """`tensors` and `count` declare false numbers of rows and entries."""
    counts = len(rows) if tensors is None else tensors, len(entries) if count is None else count
    parts = [b"GGUF", struct.pack("<IQQ", version, *counts)]
    for key, kind, value in entries:
        parts += [_text(key), struct.pack("<I", kind), _value(kind, value)]
    for name, shape, kind, offset in rows:
        parts += [_text(name), struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)]
    whole = b"".join(parts)
    return whole + bytes(-len(whole) % 32) + DATA


def with_entry(key: str, kind: int, value: Any) -> bytes:
    return header((*(entry for entry in ENTRIES if entry[0] != key), (key, kind, value)))


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _text(value)
    if kind == ARRAY:
        inner, length, content = value
        return struct.pack("<IQ", inner, length) + bytes(content)
    if kind not in FORMS:
        return bytes(value)
    return struct.pack(FORMS[kind], value)


# files that once crashed the page, and variants of them
SEEDS = {
    "split.count is a text": with_entry("split.count", STRING, "2"),
    "alignment is 0": with_entry("general.alignment", UINT32, 0),
    "alignment is odd": with_entry("general.alignment", UINT32, 33),
    "alignment is huge": with_entry("general.alignment", UINT64, 2**63),
    "architecture is long": with_entry("general.architecture", STRING, "x" * 100_000),
    "context is a text": with_entry("llama.context_length", STRING, "many"),
    "context is huge": with_entry("llama.context_length", UINT64, 2**64 - 1),
    "an unknown kind": with_entry("llama.rope.freq_base", 99, b""),
    "arrays of arrays": with_entry("tokenizer.ggml.tokens", ARRAY, (ARRAY, 2**60, b"")),
    "more strings than bytes": with_entry("tokenizer.ggml.tokens", ARRAY, (STRING, 2**60, b"")),
    "a string longer than the file": header()[:24] + struct.pack("<Q", 2**63) + header()[32:],
    "a string of an array longer than the file": with_entry(
        "tokenizer.ggml.tokens", ARRAY, (STRING, 1, struct.pack("<Q", 2**63 + 1) + b"a")
    ),
    "more tensors than bytes": header(tensors=2**60),
    "more entries than bytes": header(count=2**60),
    "no dimensions": header(rows=(("token_embd.weight", (), 0, 0),)),
    "a row of nothing": header(rows=(("token_embd.weight", (0, 4), 0, 0),)),
    "numbers of over 4,300 digits": header(rows=(("token_embd.weight", (2**64 - 1,) * 250, 0, 0),)),
    "an offset beyond the end": header(rows=(("token_embd.weight", (32, 4), 0, 2**64 - 1),)),
    "tensors that overlap": header(rows=tuple((f"blk.{i}.weight", (32, 4), 0, 0) for i in range(20))),
    "half a block": header(rows=(("token_embd.weight", (33, 4), 8, 0),)),
    "no tensors": header(rows=()),
    "a version to come": header(version=9),
    "many bytes of nothing": header((), (), tensors=4_000_000),
}


def mutants(count: int, seed: int = 0) -> Iterator[bytes]:
    """Yield the seeds, then copies of them with random bytes changed; the same for the same seed."""
    random, known = Random(seed), [header(), *SEEDS.values()]
    for place in range(count):
        content = bytearray(known[place % len(known)])
        if place >= len(known):
            for _ in range(random.randrange(1, 6)):
                at = random.randrange(4, len(content))
                content[at : at + random.randrange(9)] = random.randbytes(random.randrange(9))
        yield bytes(content)
