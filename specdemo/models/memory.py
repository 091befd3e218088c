"""How much memory a pair takes: an upper estimate, to warn in advance of what may not work."""

import psutil

from specdemo.strategies import EngineName


def memory_needed(target_bytes: int, draft_bytes: int, cache_gb: int, engine: EngineName) -> int:
    """Bytes of weights and KV caches, at most.

    GenAI: the plain and the speculative pipeline each hold a target and a cache, and the draft is loaded a second
    time to replay its proposals. The traced engine holds each model once; its caches grow with the text and count as
    one of GenAI's size. Caches take memory only as far as they are used, so short texts need less: a pair of 113 MB
    with a cache of 1 GB took 0.7 GB in GenAI, where this says 2.4.
    """
    copies = 2 if engine == "genai" else 1
    return copies * (target_bytes + draft_bytes + cache_gb * 2**30)


def memory_free() -> int:
    """Bytes of memory available to programs now."""
    return int(psutil.virtual_memory().available)


def in_units(amount: float) -> str:
    """Bytes in readable form: 4.6 GB."""
    for unit in ("bytes", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"
