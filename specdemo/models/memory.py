"""How much memory a pair takes: an estimate, for telling beforehand what cannot work."""

import psutil

from specdemo.settings import EngineName


def memory_needed(target_bytes: int, draft_bytes: int, cache_gb: int, engine: EngineName) -> int:
    """Bytes of weights and KV caches, at most.

    GenAI: the plain and the speculative pipeline hold a target and a cache each, and the draft is loaded a second
    time to replay what it proposed. The traced engine holds each model once; its caches grow with the text, and are
    counted as one of the size that GenAI's would have.
    """
    copies = 2 if engine == "genai" else 1
    return copies * (target_bytes + draft_bytes + cache_gb * 2**30)


def memory_free() -> int:
    """Bytes of memory that programs can have now."""
    return int(psutil.virtual_memory().available)
