"""llama.cpp's own server, and a tiny target with a draft for it that guesses some of its tokens; both write ASCII."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import xllamacpp

from tests.support import gguf_files

LOOKAHEAD = 4
_NOISE = 0.008  # added to weights with a deviation of 0.06: the draft is right now and then


def write_pair(folder: Path) -> tuple[Path, Path]:
    target = gguf_files.weights("llama")
    embedding = target["token_embd.weight"]  # the output layer, too
    for token, text in enumerate(gguf_files.vocabulary()):
        if not text.isascii():
            embedding[token] = 0
    random = np.random.default_rng(1)
    draft = {
        name: array + random.normal(0, _NOISE, array.shape).astype(np.float32) * (array.ndim > 1) * (array != 0)
        for name, array in target.items()
    }
    one, other = folder / "tiny-target.gguf", folder / "tiny-draft.gguf"
    return gguf_files.write(one, arrays=target), gguf_files.write(other, arrays=draft)


@contextmanager
def started(target: Path, draft: Path | None = None, threads: int = 1) -> Iterator[str]:
    """Serve on a free port, whose address is yielded."""
    params = xllamacpp.CommonParams()
    params.verbosity = -1
    params.model.path = str(target)
    params.model_alias = {target.stem}
    params.port = 0
    params.n_parallel, params.n_ctx = 4, 2048  # tokens of all four together
    params.endpoint_metrics = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    if draft is not None:
        speculative = params.speculative.draft
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        speculative.mparams.path = str(draft)
        speculative.n_max = LOOKAHEAD
        speculative.cpuparams.n_threads = speculative.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)  # which ends when it is freed
    yield server.listening_address
    del server


def counters(url: str) -> Counter[str]:
    """Read llama.cpp's or vLLM's own counters of speculation, by name and position, over all requests."""
    text = httpx.get(f"{url}/metrics").text
    found = re.findall(r'spec_decode_num_(\w+)_total(?:\{[^}]*?position="(\d+)"[^}]*\}|\S*) ([\d.]+)', text)
    return Counter({name + position: int(float(value)) for name, position, value in found})
