"""The served engine on llama.cpp's own servers, with tiny models: one decodes plainly, one speculatively."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import zip_longest
from pathlib import Path

import httpx
import pytest

from specdemo.analysis import metrics
from specdemo.engines.served import ServedEngine, served_pair
from specdemo.measure.race import race, run_alone
from specdemo.models.pairs import begun
from specdemo.records import Comparison, Request, Server, Servers
from tests.llama_files import write_pair

PROMPT = "Once upon a time"


@contextmanager
def started(*files: Path) -> Iterator[str]:
    """A llama.cpp server of these files; its address."""
    command = [sys.executable, "-m", "tests.llama_server", *map(str, files)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "it could not start"
        try:
            yield address
        finally:
            process.kill()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    target, draft = write_pair(tmp_path_factory.mktemp("gguf"))
    with ExitStack() as opened:
        plain, speculative = (opened.enter_context(started(*files)) for files in ((target,), (target, draft)))
        yield Servers(plain=Server(url=plain), speculative=Server(url=speculative))


@pytest.fixture(scope="session")
def served(servers: Servers) -> Iterator[ServedEngine]:
    with closing(ServedEngine(served_pair(servers))) as engine:
        yield engine


def drafted(servers: Servers) -> tuple[int, ...]:
    """Drafts, proposed and accepted tokens, and accepted ones by position, as the server itself counts them."""
    assert servers.speculative is not None
    told = httpx.get(f"{servers.speculative.url}/metrics").text
    names = ("num_drafts_total", "num_draft_tokens_total", "num_accepted_tokens_total", r"num_accepted_\w+{.*}")
    return tuple(int(n) for name in names for n in re.findall(rf"^llamacpp:spec_decode_{name} (\d+)$", told, re.M))


def raced(engine: ServedEngine, prompt: str = PROMPT, **chosen: object) -> Comparison:
    *_, comparison = race(engine, prompt, begun(engine.pair.target, **chosen))
    assert isinstance(comparison, Comparison)
    return comparison


def test_rounds_add_up_to_what_the_server_counts(served: ServedEngine, servers: Servers) -> None:
    settings = begun(served.pair.target, max_new_tokens=60, ignore_eos=True)
    before = drafted(servers)
    run = run_alone(served.decoder(Request.of(PROMPT, settings)))
    assert len(run.token_ids) == len(run.tokens) == 60
    proposals = [step.proposed or () for step in run.rounds]
    accepted = [step.accepted for step in run.rounds]
    assert 0 < sum(accepted) < sum(map(len, proposals)), "the draft is right now and then"
    positions = [sum(count >= i for count in accepted) for i in range(1, max(accepted) + 1)]
    counted = [after - earlier for after, earlier in zip_longest(drafted(servers), before, fillvalue=0)]
    told = [sum(map(bool, proposals)), sum(map(len, proposals)), sum(accepted), *positions]
    assert counted[: len(told)] == told
    for step in run.rounds[:-1]:
        assert len(step.committed) == step.accepted + 1


def test_both_servers_race(served: ServedEngine) -> None:
    comparison = raced(served, max_new_tokens=40, ignore_eos=True)
    assert metrics.identical(comparison)
    assert metrics.mean_accepted_length(comparison.plain) == 1
    assert (metrics.mean_accepted_length(comparison.speculative) or 0) > 1
    assert comparison.trace_source == "reported"
    assert comparison.pair.target.server == "llama.cpp"
    assert "127.0.0.1" not in comparison.model_dump_json(), "addresses are nobody's business"
