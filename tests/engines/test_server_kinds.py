"""Answers of servers other than llama.cpp's, as they document them; and what can go wrong with any server."""

import os
import re
import socket
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from itertools import count, repeat
from threading import Event, Semaphore
from typing import Any
from unittest import mock

import pytest

from specdemo import metrics
from specdemo.cli.options import check_url
from specdemo.engines.base import BRIEF
from specdemo.engines.server import RemoteEngine, remote_pair
from specdemo.engines.server.client import Client, OnEvent, Sending
from specdemo.engines.server.client import Event as Heard
from specdemo.engines.server.decoder import RemoteBatch
from specdemo.engines.server.openai import OpenAI
from specdemo.errors import PromptError, ServerError, UsageError
from specdemo.measure.closed_loop import NamedRequest, serve
from specdemo.measure.race import race, run_alone
from specdemo.models.pairs import initial_settings
from specdemo.presentation import explain, schema
from specdemo.presentation.conclusion import conclude
from specdemo.presentation.figures import figures
from specdemo.records import Comparison, Request, Run, Server, Servers
from specdemo.strategies import ServerDefault
from tests.support.fake_server import OVMS, SGLANG, VLLM, VLLM_EVENTS, Answer, chat, fake, models

RACE = import_module("specdemo.measure.race")  # `specdemo.measure.race` is its function


def not_warmed_up() -> Any:
    return mock.patch.object(RACE, "warm_up_sides", no_warm_up)


TEXT = "The cat sat on the red mat"
Answers = Mapping[str, Answer]


@contextmanager
def engine_of(plain: Answers | None, speculative: Answers | None, **server: Any) -> Iterator[RemoteEngine]:
    """The remote engine on fake servers."""
    with ExitStack() as opened:
        urls = [answers and opened.enter_context(fake(answers)).url for answers in (plain, speculative)]
        one, other = (Server(url=url, **server) if url else None for url in urls)
        pair = remote_pair(Servers(plain=one, speculative=other))
        engine = opened.enter_context(closing(RemoteEngine(pair, thoroughness=BRIEF)))
        yield engine


def no_warm_up(*_: Any) -> Generator[Any, None, dict[Any, Any]]:
    yield from ()
    return {}


def run(answers: Answers, **chosen: Any) -> tuple[Run, str]:
    with engine_of(None, answers) as engine:
        decoder = engine.decoder(Request.of("Say", initial_settings(engine.pair, **chosen)))
        return run_alone(decoder), decoder.trace_source


def compare(plain: Answers | None, speculative: Answers | None, **server: Any) -> Comparison:
    with engine_of(plain, speculative, **server) as engine:
        *_, comparison = race(engine, "Say", initial_settings(engine.pair))
        assert isinstance(comparison, Comparison)
        assert schema.from_json(schema.to_json(comparison)).model_dump() == comparison.model_dump()
        return comparison


def judged(run: Run) -> list[tuple[int, int]]:
    """Proposed and accepted tokens of each round."""
    return [(len(step.proposed or ()), step.accepted) for step in run.rounds]


def test_vllm_tells_every_round_at_the_end() -> None:
    found, source = run(VLLM)
    assert (found.text, found.token_ids, source) == (TEXT, (10, 11, 12, 13, 14, 15, 16), "reported")
    assert judged(found) == [(3, 2), (3, 0), (3, 1)]
    assert found.finish_reason == "length"


def test_rounds_that_arrived_together_are_told_apart() -> None:
    together = (*VLLM_EVENTS[:2], chat(" cat sat on the red mat", usage=7, token_ids=[11, 12, 13, 14, 15, 16]))
    stream = (*together, *VLLM["/v1/chat/completions"].stream[-2:])
    found, source = run({**VLLM, "/v1/chat/completions": Answer(stream=stream)})
    assert (judged(found), source) == ([(3, 2), (3, 0), (3, 1)], "reported")
    assert found.token_ids == (10, 11, 12, 13, 14, 15, 16)


def test_vllm_without_metrics_of_requests_tells_only_what_came_together() -> None:
    found, source = run({**VLLM, "/v1/chat/completions": Answer(stream=(*VLLM_EVENTS, "[DONE]"))})
    assert [len(step.committed) for step in found.rounds] == [3, 1, 2]
    assert {step.proposed for step in found.rounds} == {None}
    assert source == "passes"


def test_sglang_tells_totals_from_which_rounds_follow() -> None:
    found, source = run(SGLANG, apply_chat_template=False)
    assert (found.text, source) == (TEXT, "reported")
    assert judged(found) == [(3, 2), (3, 0), (3, 1)]


def test_ovms_tells_no_rounds_but_is_told_how_to_speculate() -> None:
    with engine_of(OVMS, OVMS) as engine:
        settings = initial_settings(engine.pair, num_assistant_tokens=3)
        *_, comparison = race(engine, "Say", settings)
    assert isinstance(comparison, Comparison)
    assert comparison.trace_source == "bursts"
    assert len(comparison.speculative.tokens) == len(comparison.plain.tokens) == 6, "as the server counts them"
    assert metrics.identical(comparison)
    assert metrics.acceptance_rate(comparison.speculative) is None
    assert "Each chunk of text" in " ".join(explain.notes(comparison))


def test_tokens_that_arrive_together_are_not_said_to_come_from_one_pass() -> None:
    comparison = compare(VLLM, {**VLLM, CHAT: Answer(stream=(*VLLM_EVENTS, "[DONE]"))})
    assert "how many tokens each event held" in " ".join(explain.notes(comparison))


def test_a_batch_learns_of_rounds_at_the_end() -> None:
    with engine_of(None, VLLM) as engine, closing(engine.batch(ServerDefault())) as batch:
        request = Request.of("Say", initial_settings(engine.pair))
        # no third request, which might end before the second
        block = serve(batch, repeat(NamedRequest("first", request), 2), 2, 2)
    assert block is not None
    assert (block.judged, block.accepted) == ((6, 18), (2, 2, 2))
    assert [one.tokens for one in block.served] == [7, 7]


class Mouth:
    """A client whose server says what a test makes it say."""

    def __init__(self) -> None:
        self.heard_by: list[OnEvent] = []

    def send(self, path: str, body: dict[str, Any], on_event: OnEvent) -> Sending:
        self.heard_by.append(on_event)
        return Sending(0.0, lambda: None)

    def understood(self, news: Iterator[Any]) -> Iterator[Any]:
        return news

    def understanding(self) -> AbstractContextManager[None]:
        return nullcontext()

    def say(self, number: int, *events: dict[str, Any] | None) -> None:
        for at, event in enumerate(events, 1):
            self.heard_by[number](None if event is None else Heard(at, event))


def test_tokens_that_are_counted_at_the_end_are_not_taken_for_one_per_event() -> None:
    client: Any = Mouth()
    batch = RemoteBatch(client, OpenAI("openai", client, "tiny"))
    for number in range(2):
        batch.submit(number, Request("Say", ServerDefault()))
    end = {"choices": [], "usage": {"completion_tokens": 6}}
    client.say(0, chat("The cat "), chat("sat on the red mat."), end, None)
    assert sum(batch.receive()[-1].tokens for _ in range(2)) == 2, "nothing is known of their number yet"
    (*_, last) = [arrival for _ in range(2) for arrival in batch.receive()]
    assert (last.tokens, last.finish_reason) == (4, "stop")
    client.say(1, chat("nine characters"), chat(", and more."))  # 26 letters at 6 tokens for 27
    first, second = (batch.receive()[0] for _ in range(2))
    assert (first.tokens, second.tokens) == (3, 3)
    client.say(1, {"choices": [], "usage": {"completion_tokens": 5}}, None)
    (*_, last) = [arrival for _ in range(2) for arrival in batch.receive()]
    assert last.tokens == -1, "what was counted too many"


def test_a_batch_fails_with_its_server() -> None:
    with engine_of(None, {**VLLM, CHAT: BAD["429"][0]}) as engine, closing(engine.batch(ServerDefault())) as batch:
        request = Request.of("Say", initial_settings(engine.pair))
        with pytest.raises(ServerError, match="too many"):
            serve(batch, repeat(NamedRequest("first", request)), 1, 1)


def test_what_is_sent() -> None:
    with fake(VLLM) as vllm, fake(OVMS) as ovms, mock.patch.dict(os.environ, {"SPECDEMO_API_KEY": "secret"}):
        servers = Servers(plain=Server(url=vllm.url), speculative=Server(url=ovms.url + "/v3"))
        with closing(RemoteEngine(remote_pair(servers))) as engine:
            settings = initial_settings(engine.pair, num_assistant_tokens=3, do_sample=True, top_k=7, seed=5)
            request = Request.of("Say", settings)
            for one in (request, request.plain):
                run_alone(engine.decoder(one))
    assert set(ovms.keys) == {"Bearer secret"}
    assert set(vllm.keys) == {None}, "a key for one host is not sent to another"
    (sent,), (plain,) = ovms.bodies["/v3/chat/completions"], vllm.bodies["/v1/chat/completions"]
    assert (sent["num_assistant_tokens"], sent["top_k"], sent["seed"]) == (3, 7, 5)
    assert sent["messages"] == [{"role": "user", "content": "Say"}]
    assert "num_assistant_tokens" not in plain


CHAT = "/v1/chat/completions"
BAD: dict[str, tuple[Answer, str]] = {
    "401": (Answer({"error": {"message": "no key"}}, 401), "requires a valid API key; set SPECDEMO_API_KEY (401)."),
    "404": (Answer({"error": {"message": "no model tiny"}}, 404), "no model tiny"),
    "429": (Answer({"error": "slow down"}, 429), "too many requests"),
    "503": (Answer("loading", 503), "not ready"),
    "500": (Answer({"error": {"message": "out of memory"}}, 500), "out of memory"),
    "addresses": (
        Answer({"error": "http://10.0.0.7:9000/v1, 10.0.0.8:80 and 10.0.0.9 failed"}, 500),
        ": …, … and … failed",
    ),
    "deep": (Answer(stream=("[" * 100_000,)), "no JSON object"),
    "undecodable": (Answer({}, headers={"Content-Encoding": "gzip"}), "switch its compression off"),
    "no JSON": (Answer(stream=("<html>", "[DONE]")), "no JSON object"),
    "an error in between": (Answer(stream=(chat("The"), {"error": {"message": "evicted"}})), "evicted"),
    "broken off": (Answer(stream=VLLM_EVENTS[:3], broken=True), "broke its answer off"),
    "endless": (Answer(stream=(chat("The", usage=1), chat("x" * 3000, usage=3000))), "more tokens than"),
    "nonsense": (Answer(stream=(chat("The", usage=1), {"choices": 3})), "unknown format"),
    "no end": (Answer(stream=VLLM_EVENTS[:3]), "broke its answer off"),
}


@pytest.mark.parametrize("what", BAD)
def test_an_error_is_a_sentence_and_the_other_side_is_kept(what: str) -> None:
    answer, words = BAD[what]
    comparison = compare(VLLM, {**VLLM, CHAT: answer})
    assert words in comparison.failures["speculative"]
    assert comparison.failures["speculative"].startswith("The speculative server ")
    assert not re.search(r"127\.0\.0|10\.0\.0", comparison.model_dump_json())
    assert comparison.plain.text == TEXT
    assert comparison.speculative.finish_reason == "failed"
    assert [figure for figure in figures(comparison) if "nan" in figure.speculative] == []


def test_nonsense_at_the_end_is_a_sentence_too() -> None:
    told = {"speculative_decoding": {"num_spec_steps": 3, "num_draft_tokens": None}}
    answers = {**VLLM, CHAT: Answer(stream=(*VLLM_EVENTS, {"choices": [], "metrics": told}, "[DONE]"))}
    with pytest.raises(ServerError, match="unknown format"):
        run(answers)
    with engine_of(None, answers) as engine, closing(engine.batch(ServerDefault())) as batch:
        request = Request.of("Say", initial_settings(engine.pair))
        with pytest.raises(ServerError, match="unknown format"):
            serve(batch, repeat(NamedRequest("first", request)), 1, 1)


def test_a_prompt_that_cannot_be_sent_is_refused() -> None:
    with engine_of(None, VLLM) as engine:
        request = Request.of("Say \ud800", initial_settings(engine.pair))
        with pytest.raises(PromptError, match="not text"):
            run_alone(engine.decoder(request))
        with closing(engine.batch(ServerDefault())) as batch, pytest.raises(PromptError, match="not text"):
            batch.submit(0, request)


def test_whatever_goes_wrong_while_an_answer_is_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "check_event", mock.Mock(side_effect=RecursionError))
    with pytest.raises(ServerError, match="cannot be read"):
        run(VLLM)


def test_as_many_requests_as_a_load_may_have_are_in_flight() -> None:
    answered, number = Event(), 110
    begun_ = Semaphore(0)
    waiting = Answer(stream=VLLM_EVENTS, begins=begun_.release, waits=lambda: answered.wait(30))
    with engine_of(None, {**VLLM, CHAT: waiting}) as engine, closing(engine.batch(ServerDefault())) as batch:
        for index in range(number):
            batch.submit(index, Request("Say", ServerDefault(), apply_chat_template=True))
        assert all(begun_.acquire(timeout=4) for _ in range(number))
        answered.set()


def test_a_server_that_stops_answering() -> None:
    never = Event()
    silent = Answer(stream=VLLM_EVENTS[:3], waits=lambda: never.wait(20))
    with not_warmed_up():
        comparison = compare(VLLM, {**VLLM, CHAT: silent}, silence_seconds=1)  # in which anybody connects
    never.set()
    assert "sent nothing for 1 s;" in comparison.failures["speculative"]
    assert comparison.speculative.text == "The cat sat on"


def test_both_fail() -> None:
    bad = {**VLLM, CHAT: BAD["429"][0]}
    with pytest.raises(ServerError, match="plain server has too many"):
        compare(bad, bad)


def test_one_server_runs_alone() -> None:
    comparison = compare(None, VLLM)
    assert (comparison.plain.finish_reason, comparison.speculative.text) == ("absent", TEXT)
    assert metrics.speedup(comparison) is None
    assert "no plain server" in conclude(comparison).sentence
    assert compare(VLLM, None).plain.text == TEXT


def test_servers_that_cannot_be_used() -> None:
    with socket.socket() as deaf:  # has a port that nobody else gets, and does not listen
        deaf.bind(("127.0.0.1", 0))
        with pytest.raises(ServerError, match="The plain server cannot be reached"):
            remote_pair(Servers(plain=Server(url=f"http://127.0.0.1:{deaf.getsockname()[1]}")))
    with fake({**VLLM, "/v1/models": models("a", "b")}) as two:
        with pytest.raises(ServerError, match=r"several models \(a, b\); name one with --model"):
            remote_pair(Servers(speculative=Server(url=two.url)))
        with pytest.raises(ServerError, match="no model 'c', but a, b"):
            remote_pair(Servers(speculative=Server(url=two.url, model="c")))
        names = [two.url + "/v1", two.url]
        plain, speculative = (Server(url=url, model=name) for url, name in zip(names, "ab", strict=True))
        assert remote_pair(Servers(plain=plain, speculative=speculative)).target.name == "b"
    with pytest.raises(UsageError, match="--url"):
        remote_pair(Servers())
    for url in ("http://[::1", "http://localhost:port", "http://:80"):
        with pytest.raises(UsageError, match="is not a server's address"):
            check_url(url)
    with pytest.raises(UsageError, match="Invalid URL of the"):
        remote_pair(Servers(plain=Server(url="http://[::1")))


@pytest.mark.parametrize("page", [Answer("<html>"), Answer({"data": []}), Answer([1])])
def test_a_server_that_does_not_list_its_models(page: Answer) -> None:
    with fake({"/version": page, "/v1/models": page}) as server:
        with pytest.raises(ServerError, match="does not list its models; name one with --model"):
            remote_pair(Servers(speculative=Server(url=server.url)))
        named = Server(url=server.url, model="tiny", kind="vllm")
        with closing(RemoteEngine(remote_pair(Servers(speculative=named)))) as engine:
            assert engine.environment.device == "vLLM"
        with pytest.raises(ServerError, match="knows no such model or address"):
            remote_pair(Servers(speculative=Server(url=server.url, kind="llama.cpp")))


def test_answers_of_something_else_are_sentences() -> None:
    for answers, words in (
        ({"/props": Answer("<html>")}, "no JSON object"),
        ({"/props": Answer({}), "/v1/models": Answer("<html>")}, "no JSON object"),
        ({"/props": Answer({}), "/v1/models": Answer({"data": [3]})}, "unknown format"),
    ):
        with fake(answers) as server, pytest.raises(ServerError, match=words):
            remote_pair(Servers(speculative=Server(url=server.url, kind="llama.cpp")))
    with fake({"/v1/models": Answer({"data": [3]})}) as server, pytest.raises(ServerError, match="unknown format"):
        remote_pair(Servers(speculative=Server(url=server.url)))


def test_a_missing_key_is_named_by_the_variable_of_its_side() -> None:
    closed = {"/v1/models": Answer({"error": "no key"}, 401)}
    with fake(closed) as one, fake(closed) as other:
        here, elsewhere = Server(url=one.url), Server(url=other.url)
        for plain, speculative, own, variable in (
            (None, here, "", "SPECDEMO_API_KEY"),
            (here, here, "", "SPECDEMO_API_KEY"),
            (here, here, "own", "SPECDEMO_PLAIN_API_KEY"),
            (here, elsewhere, "", "SPECDEMO_PLAIN_API_KEY"),
        ):
            keys = {"SPECDEMO_API_KEY": "secret\r\n", "SPECDEMO_PLAIN_API_KEY": own}
            with mock.patch.dict(os.environ, keys), pytest.raises(ServerError, match=f"set {variable} "):
                remote_pair(Servers(plain=plain, speculative=speculative))
    assert set(one.keys) == {"Bearer secret", "Bearer own", None}
    for key in ("sëcret", "se\ncret"):
        with mock.patch.dict(os.environ, {"SPECDEMO_API_KEY": key}), pytest.raises(UsageError) as error:
            remote_pair(Servers(speculative=here))
        assert "set SPECDEMO_API_KEY again" in str(error.value)
        assert error.value.__cause__ is None


def test_requests_at_once_are_both_under_way_before_either_is_answered() -> None:
    under_way = {"plain": Event(), "speculative": Event()}
    met = []

    def meet(side: str, other: str) -> None:
        under_way[side].set()
        met.append(under_way[other].wait(5))

    stream = VLLM[CHAT].stream
    answers = {
        side: {**VLLM, CHAT: Answer(stream=stream, begins=partial(meet, side, other))}
        for side, other in (("plain", "speculative"), ("speculative", "plain"))
    }
    with (
        engine_of(answers["plain"], answers["speculative"]) as engine,
        not_warmed_up(),
    ):
        *_, comparison = race(engine, "Say", initial_settings(engine.pair, at_once=True))
    assert isinstance(comparison, Comparison)
    assert met == [True, True]
    assert comparison.plain.text == comparison.speculative.text == TEXT


def test_a_server_whose_model_has_a_template_is_asked_through_it_unless_told_otherwise() -> None:
    end = {"content": "", "stop": True, "stop_type": "limit", "tokens_predicted": 1, "timings": {"predicted_ms": 1.0}}
    answers = {
        "/props": Answer({"default_generation_settings": {"n_ctx": 512}, "chat_template": "{{ messages }}"}),
        "/v1/models": models("tiny"),
        "/apply-template": Answer({"prompt": "<user>Say<assistant>"}),
        "/completion": Answer(stream=({"content": "Hi", "tokens": [1], "tokens_predicted": 1}, end)),
    }
    with fake(answers) as server:
        one = Server(url=server.url, kind="llama.cpp")
        pair = remote_pair(Servers(speculative=one))
        assert pair.target.chat_template
        with closing(RemoteEngine(pair)) as engine:
            for chosen in ({}, {"apply_chat_template": False}):
                run_alone(engine.decoder(Request.of("Say", initial_settings(pair, **chosen))))
    assert [body["prompt"] for body in server.bodies["/completion"]] == ["<user>Say<assistant>", "Say"]
    with fake(VLLM) as server:
        pair = remote_pair(Servers(speculative=Server(url=server.url)))
        with closing(RemoteEngine(pair)) as engine:
            run_alone(engine.decoder(Request.of("Say", initial_settings(pair))))
    assert server.bodies[CHAT][0]["messages"] == [{"role": "user", "content": "Say"}]


def test_an_answer_is_complete_without_the_counters_that_fail_after_it() -> None:
    asked = count()

    def second_time() -> None:
        if next(asked):
            raise ConnectionError

    names = ("drafts", "draft_tokens", "accepted_tokens")
    counters = Answer("\n".join(f"vllm:spec_decode_num_{name}_total 0" for name in names), waits=second_time)
    found, source = run(
        {**VLLM, "/v1/chat/completions": Answer(stream=(*VLLM_EVENTS, "[DONE]")), "/metrics": counters}
    )
    assert (found.text, source) == (TEXT, "passes")
    assert next(asked) > 1
