"""Inspection of GGUF files by their headers, without reading weights."""

from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path

from specdemo.child import Failure, Limits, run_limited
from specdemo.errors import GGUFError, ModelError, quoted
from specdemo.models.folder import cached_until_changed, inspect_folder, weights_by_type
from specdemo.models.gguf_header import BLOCKS, Header, incomplete, read_array, read_header
from specdemo.models.gguf_keys import refusal_of
from specdemo.records import Model

FAMILIES = ("llama", "qwen2", "qwen3")  # architectures that gguf_network.py builds
FOUR_BITS, EIGHT_BITS = ("Q4_0", "Q4_1", "Q4_K"), ("Q5_0", "Q8_0", "Q6_K")
"""Kinds whose integers OpenVINO can keep, in as many bits."""


def inspect_model(path: Path) -> Model:
    """Describe a model. Every failure is a `ModelError`, so one bad file cannot stop a listing."""
    try:
        return inspect_gguf(path) if path.is_file() else inspect_folder(path)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{quoted(path.name)} cannot be read ({type(error).__name__}); choose another model, or delete this one."
        ) from error


LIMITS = Limits()


def inspect_limited(
    path: Path, failure: Failure, read: Callable[[Path], Model] = inspect_model, *, limits: Limits = LIMITS
) -> Generator[None, None, Model]:
    """Describe an untrusted model in a separate process, within limits; yield while waiting."""
    mapped = sum(file.stat().st_size for file in ([path] if path.is_file() else path.glob("*.gguf")))
    limits = limits._replace(memory=limits.memory + mapped)
    return run_limited(read, path, name="specdemo inspection", failure=failure, limits=limits)


@cached_until_changed
def inspect_gguf(path: Path) -> Model:
    header, size = read_header(path), path.stat().st_size
    check_readable(header)
    needed = max(header.data + tensor.offset + tensor.bytes for tensor in header.tensors)
    if size < needed:
        raise incomplete(path.name, f" has {size} of {needed} bytes and")
    weight_bytes = sum(tensor.bytes for tensor in header.tensors)
    if weight_bytes > size:
        raise GGUFError(f"{path.name!r} is damaged: its tensors overlap; choose another file.")
    family = header.family
    sizes = weights_by_type((tensor.type, tensor.shape) for tensor in header.tensors)
    return Model(
        name=path.name,
        path=path,
        architecture=family,
        parameters=sum(sizes.values()),
        weights=sizes.most_common(1)[0][0],
        context_length=header.integer(f"{family}.context_length"),
        weight_bytes=weight_bytes,
        vocabulary=vocabulary_of(header),
        chat_template="tokenizer.chat_template" in header.metadata,
    )


def vocabulary_of(header: Header) -> int | None:
    return next((tensor.shape[-1] for tensor in header.tensors if tensor.name == "token_embd.weight"), None)


def tokens_of(path: Path) -> dict[bytes, int]:
    """Return the ids of a file's tokens, to compare its tokenizer before it is converted."""
    tokens = read_array(path, read_header(path).metadata.get("tokenizer.ggml.tokens"))
    return {token: id_ for id_, token in enumerate(tokens)}


def check_readable(header: Header) -> None:
    name, family = header.file, header.family
    if family not in FAMILIES:
        raise GGUFError(
            f"{name!r} has the {quoted(family)[1:-1]} architecture, which specdemo does not convert; "
            f"choose one of {', '.join(FAMILIES)}, or export the original with optimum-intel."
        )
    if (header.integer("split.count") or 1) > 1:
        raise GGUFError(f"{name!r} is one of several parts; join them with llama-gguf-split --merge.")
    refusal = refusal_of(header)
    if refusal is not None:
        raise GGUFError(f"{name!r} {refusal}; choose another file, or export the original with optimum-intel.")
    types = Counter(tensor.type for tensor in header.tensors)
    unsupported = [kind for kind, _ in types.most_common() if kind not in BLOCKS]
    if unsupported:
        raise GGUFError(
            f"{name!r} holds {', '.join(unsupported)} tensors, which the gguf package does not unpack; "
            "choose a file of another quantization, such as Q4_K_M."
        )
    if not any(len(tensor.shape) > 1 for tensor in header.tensors):
        raise GGUFError(f"{name!r} holds no weights; choose another file.")
