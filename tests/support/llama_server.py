"""llama.cpp's own server on a free local port, whose address it prints; a draft proposes four tokens per round.

python -m tests.support.llama_server TARGET [DRAFT [THREADS]]
"""

import sys
from pathlib import Path

import xllamacpp

LOOKAHEAD = 4


def main(target: str, draft: str = "", threads: str = "1") -> None:
    """Serve until standard input is closed, so that nothing stays when whoever started it is gone."""
    params = xllamacpp.CommonParams()
    params.model.path = target
    params.model_alias = {Path(target).stem}
    params.port = 0
    params.n_parallel, params.n_ctx = 4, 2048  # tokens of all four together
    params.endpoint_metrics = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    if draft:
        speculative = params.speculative.draft
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        speculative.mparams.path = draft
        speculative.n_max = LOOKAHEAD
        speculative.cpuparams.n_threads = speculative.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
