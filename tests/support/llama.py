"""A tiny target and a draft for it that guesses some of its tokens, as GGUF files; both write ASCII."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.support import gguf_files

_NOISE = 0.008  # of the draft's weights, whose deviation is 0.06: it is right now and then


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
    files = {name: folder / f"tiny-{name}.gguf" for name in ("target", "draft")}
    return (
        gguf_files.write(files["target"], arrays=target),
        gguf_files.write(files["draft"], arrays={name: array.astype(np.float32) for name, array in draft.items()}),
    )


@contextmanager
def started(*files: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.support.llama_server", *map(str, files)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "it could not start"
        try:
            yield address
        finally:
            process.kill()
