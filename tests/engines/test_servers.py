"""The server engine on llama.cpp's own servers, with tiny models: one decodes plainly, one speculatively."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from specdemo.cli import main
from specdemo.engines.server.engine import ServerEngine, server_pair
from specdemo.errors import PromptError, ServerError, SettingsError
from specdemo.experiments.concurrent import run_block
from specdemo.experiments.plan import PRESETS, available_strategies
from specdemo.experiments.prompts import typed_tasks
from specdemo.experiments.rows import measure, points
from specdemo.models.catalogue import pair_settings
from specdemo.racing.costs import measure_costs
from specdemo.racing.race import run_alone
from specdemo.records import Request, Server, Servers
from specdemo.results import metrics
from specdemo.strategies import Constant
from tests.engines.test_server_answers import saved_race
from tests.support import BRIEF, gguf_files
from tests.support.fake_server import Answer, fake
from tests.support.hurried import load_briefly
from tests.support.llama import counters, started

PROMPT = "Once upon a time"


@pytest.fixture(scope="session")
def served(llama_servers: Servers) -> Iterator[ServerEngine]:
    with closing(ServerEngine(server_pair(llama_servers), thoroughness=BRIEF)) as engine:
        yield engine


def urls(servers: Servers) -> list[str]:
    return [server.url for server in (servers.plain, servers.speculative) if server is not None]


def counted(servers: Servers) -> Counter[str]:
    """Read the speculative server's own counters."""
    return counters(urls(servers)[1])


def test_rounds_add_up_to_what_the_server_counts(served: ServerEngine, llama_servers: Servers) -> None:
    settings = pair_settings(served.pair, max_new_tokens=60, ignore_eos=True)
    before = counted(llama_servers)
    run = run_alone(served.decoder(Request.of(PROMPT, settings)))
    assert len(run.token_ids) == len(run.tokens) == 60
    proposals = [step.proposed or () for step in run.rounds]
    accepted = [step.accepted for step in run.rounds]
    assert 0 < sum(accepted) < sum(map(len, proposals)), "the draft is right now and then"
    sums = {"drafts": sum(map(bool, proposals)), "draft_tokens": sum(map(len, proposals))}
    sums |= {"accepted_tokens": sum(accepted)}
    sums |= {f"accepted_tokens_per_pos{i}": sum(count > i for count in accepted) for i in range(max(accepted))}
    assert (counted(llama_servers) - before).items() >= sums.items()
    for step in run.rounds[:-1]:
        assert len(step.committed) == step.accepted + 1


def test_a_sweep_and_a_benchmark_try_what_the_server_supports(served: ServerEngine) -> None:
    settings = pair_settings(served.pair, max_new_tokens=8, ignore_eos=True)
    plan = PRESETS["tune"].plan(served.pair, typed_tasks([PROMPT]), settings, repeats=1)
    *_, last = measure(plan, lambda *_: served, keep=True)
    (point,) = points(last.result)
    assert point.variant == "policy server"
    assert point.outputs == "outputs identical"
    assert point.acceptance_rate is not None
    assert list(available_strategies(served.pair, settings)) == ["server server"]


def test_several_requests_at_once(served: ServerEngine, llama_servers: Servers) -> None:
    settings = pair_settings(served.pair, max_new_tokens=24, ignore_eos=True)
    request, before = Request.of(PROMPT, settings), counted(llama_servers)
    blocks = []
    for decoded in (request.plain, request):
        with closing(served.batch(decoded.strategy)) as batch:
            blocks.append(run_block(batch, repeat(decoded), 3, 4))
    plain, speculative = blocks
    assert plain is not None
    assert speculative is not None
    assert [answer.tokens for answer in speculative.served] == [24] * 4
    assert {answer.output for answer in plain.served} == {answer.output for answer in speculative.served}
    assert all(0 < answer.first <= answer.last for answer in speculative.served)
    assert speculative.rounds
    limit = (counted(llama_servers) - before)["draft_tokens"]  # with requests that were broken off at the end
    assert sum(proposed or 0 for proposed, _ in speculative.rounds) <= limit
    with closing(served.batch(request.strategy)) as batch, pytest.raises(PromptError):
        batch.submit(0, replace(request, prompt=" "))


def test_settings_fixed_at_a_servers_start_cannot_be_chosen(served: ServerEngine) -> None:
    for chosen in ({"policy": "constant"}, {"drafter": "lookup", "policy": "constant"}):
        with pytest.raises(SettingsError, match="choose policy server"):
            pair_settings(served.pair, **chosen)
    with pytest.raises(SettingsError, match="choose policy server"):
        served.decoder(Request(PROMPT, Constant(4)))
    with pytest.raises(PromptError):
        run_alone(served.decoder(Request.of(" ", pair_settings(served.pair))))
    assert measure_costs(served) is None


def test_a_router_finds_each_side_by_its_models_name(llama_servers: Servers) -> None:
    """Imitates llama.cpp's router in front of two servers, by its documentation and source; no wheel contains it."""
    behind = dict(zip(("base", "fast"), urls(llama_servers), strict=True))
    router = {"role": "router", "model_path": "none", "default_generation_settings": {"params": {}, "n_ctx": 0}}

    def route(path: str, body: dict[str, Any]) -> Answer:
        parts = urlsplit(path)
        named = str(body.get("model") or "".join(parse_qs(parts.query).get("model", [])))
        if parts.path == "/v1/models":
            return Answer({"data": [{"id": name, "aliases": [f"my {name}"]} for name in behind]})
        if parts.path == "/props" and not named:
            return Answer(router)
        if named not in behind:
            return Answer({"error": {"message": f"model '{named}' not found"}}, 400)
        sent = httpx.request("POST" if body else "GET", behind[named] + parts.path, json=body or None)
        streamed = sent.headers["content-type"].startswith("text/event-stream")
        return Answer(stream=[sent.content]) if streamed else Answer(sent.text, sent.status_code)

    with fake(route) as server:
        one = Server(url=server.url)
        for servers, option in ((Servers(plain=one), "--plain-model"), (Servers(speculative=one), "--model")):
            with pytest.raises(ServerError, match=rf"several models \(base, fast\); name one with {option}\."):
                server_pair(servers)
        plain, speculative = (Server(url=server.url, model=name) for name in ("my base", "fast"))
        pair = server_pair(Servers(plain=plain, speculative=speculative))
        with closing(ServerEngine(pair, thoroughness=BRIEF)) as engine:
            comparison = saved_race(engine, PROMPT, max_new_tokens=12, ignore_eos=True)
        assert all("model" in body for path in server.bodies for body in server.bodies[path])
        assert {body["model"] for body in server.bodies["/apply-template"]} == set(behind)
        prompts = [body["prompt"] for body in server.bodies["/completion"] if PROMPT in body["prompt"]]
    assert all("<|im_start|>" in prompt for prompt in prompts)
    assert metrics.identical(comparison)
    assert comparison.speculative.passes_known
    assert (comparison.pair.target.server, comparison.pair.target.context_length) == ("llama.cpp", 512)


def test_characters_of_several_tokens_hide_some(tmp_path: Path) -> None:
    """Most tokens end within a character; llama.cpp sends no event for those."""
    file = gguf_files.write(tmp_path / "bytes.gguf")
    with (
        started(file, file) as url,
        closing(ServerEngine(server_pair(Servers(speculative=Server(url=url))))) as engine,
    ):
        settings = pair_settings(engine.pair, max_new_tokens=60, ignore_eos=True, do_sample=True, temperature=2.0)
        run = run_alone(engine.decoder(Request.of(PROMPT, settings)))
    assert len(run.tokens) == 60 > len(run.token_ids)
    assert sum(len(step.committed) for step in run.rounds) == 59
    assert all(len(step.committed) == step.accepted + 1 for step in run.rounds[:-1] if step.proposed is not None)


def test_the_terminal(
    llama_servers: Servers, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, speculative = urls(llama_servers)
    monkeypatch.setenv("SPECDEMO_PLAIN_URL", plain)
    chosen = ["--max-new-tokens", "8", "--ignore-eos", "--repeats", "0", "--json", "-"]
    assert main(["compare", PROMPT, "--url", speculative, *chosen], load=load_briefly) == 0
    written = json.loads(capfd.readouterr().out)
    assert (written["trace_source"], written["summary"]["identical"]) == ("reported", True)
    assert main(["compare", PROMPT, "--engine", "server", "--target", "story-pair/target"]) == 2
    monkeypatch.delenv("SPECDEMO_PLAIN_URL")
    assert main(["compare", PROMPT, "--engine", "server"]) == 2
    assert main(["compare", PROMPT, "--url", "http://127.0.0.1:1"]) == 1
    assert "cannot be reached" in capfd.readouterr().err
