"""Servers' answers: in OpenAI's protocol, in variants of it or of llama.cpp's, and malformed ones."""

import json
import os
import re
import socket
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import repeat
from threading import Event
from time import monotonic, sleep
from typing import Any
from unittest import mock

import psutil
import pytest

from specdemo.engines.server.client import Client
from specdemo.engines.server.engine import ServerEngine, server_pair
from specdemo.errors import PromptError, ServerError, UsageError
from specdemo.experiments.concurrent import run_block
from specdemo.exports import schema
from specdemo.models.catalogue import pair_settings
from specdemo.racing.race import run_alone
from specdemo.records import Comparison, Request, Run, Server, Servers
from specdemo.strategies import ServerDefault
from tests.support import BRIEF
from tests.support.fake_server import CHAT, EVENTS, MISBEHAVING, TEXT, Answer, Answers, answers, chat, fake, models
from tests.support.proposals import raced


@contextmanager
def engine_of(plain: Any, speculative: Any, **server: Any) -> Iterator[ServerEngine]:
    """Start servers, each from its answers or a function that answers."""
    with ExitStack() as opened:
        urls = [content and opened.enter_context(fake(content)).url for content in (plain, speculative)]
        servers = [Server(url=url, **server) if url else None for url in urls]
        pair = server_pair(Servers(plain=servers[0], speculative=servers[1]))
        yield opened.enter_context(closing(ServerEngine(pair, thoroughness=BRIEF)))


def run(content: Answers, **chosen: Any) -> Run:
    with engine_of(None, content, **{"silence_seconds": 1.0, **chosen}) as engine:
        return answered(engine)


def answered(engine: ServerEngine, **chosen: Any) -> Run:
    return run_alone(engine.decoder(Request.of("Say", pair_settings(engine.pair, **chosen))))


def saved_race(engine: ServerEngine, prompt: str = "Say", **chosen: Any) -> Comparison:
    comparison = raced(engine, prompt, pair_settings(engine.pair, **chosen))
    assert schema.from_json(schema.to_json(comparison)).model_dump() == comparison.model_dump()
    return comparison


def compare(plain: Any, speculative: Any, **chosen: Any) -> Comparison:
    with engine_of(plain, speculative) as engine:
        return saved_race(engine, **chosen)


def pair_at(url: str, **server: Any) -> str:
    return server_pair(Servers(speculative=Server(url=url, **server))).target.name


def frames(*streamed: Any) -> tuple[Any, ...]:
    """Return the usual events, with others after the first text."""
    return (*EVENTS[:2], *streamed, *EVENTS[2:])


def test_chunks_are_rounds_and_the_servers_count_is_divided_among_them() -> None:
    answer = run(answers())
    assert (answer.text, answer.finish_reason, len(answer.tokens)) == (TEXT, "length", 7)
    assert [len(step.committed) for step in answer.rounds] == [2, 2, 2]
    assert {step.proposed for step in answer.rounds} == {None}
    assert not answer.passes_known
    assert len(run(answers(*EVENTS[:5], "[DONE]")).tokens) == 4


COMPLETE: dict[str, tuple[Any, ...]] = {
    "without [DONE]": EVENTS,
    "without usage or [DONE]": EVENTS[:5],
    "[DONE] without an end of line": (*EVENTS, b"data: [DONE]"),
    "error null": tuple({**event, "error": None} for event in EVENTS),
    "no objects": frames("null", "[]", "[1, 2]", "3", "ping", "", b"data\n\n", b": ping\n\n"),
    "no choices": frames({}, {"choices": None}, {"choices": []}, {"choices": [{}]}, b"event: ping\ndata: {}\n\n"),
    "finish reason empty": tuple(json.loads(json.dumps(event).replace("null", '""')) for event in EVENTS),
    "messages instead of deltas": tuple(json.loads(json.dumps(item).replace("delta", "message")) for item in EVENTS),
    "content as parts": (chat([{"type": "text", "text": "The cat"}, {"text": " sat on"}]), *EVENTS[3:]),
    "a count that is none": (*EVENTS[:5], {"usage": {"completion_tokens": "many"}}, "[DONE]"),
    "usage in every event": tuple({**event, "usage": {"completion_tokens": 3}} for event in EVENTS),
    "an error after the end": (*EVENTS[:5], {"error": {"message": "cannot log"}}),
}


@pytest.mark.parametrize("what", COMPLETE)
def test_a_complete_answer_is_read_whatever_is_in_between(what: str) -> None:
    answer = run(answers(*COMPLETE[what]))
    assert (answer.text, answer.finish_reason) == (TEXT, "length")


def test_a_server_that_falls_silent_after_its_end_is_complete() -> None:
    silent = Event()
    answer = run(answers(*EVENTS[:5], waits=lambda: silent.wait(20)), silence_seconds=0.3)
    silent.set()
    assert answer.text == TEXT


def test_half_a_character_is_replaced() -> None:
    assert run(answers(chat("a😀b\udc00"), "[DONE]")).text == "a😀b\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("names", [("reasoning",), ("reasoning_content",), ("reasoning", "reasoning_content")])
def test_separate_thinking_appears_once_in_think_tags(names: tuple[str, ...]) -> None:
    thinking: list[Any] = [{"choices": [{"delta": dict.fromkeys(names, text)}]} for text in ("Let me", " think.")]
    assert run(answers(*thinking, chat("Hi"), "[DONE]")).text == "<think>Let me think.</think>Hi"
    part = chat([{"type": "thinking", "thinking": [{"type": "text", "text": "Let me think."}]}])
    assert run(answers(part, chat([{"text": "Hi"}]), "[DONE]")).text == "<think>Let me think.</think>Hi"


def many_ids(number: int) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": "x"}, "token_ids": [1] * number}]}


def nested(depth: int) -> str:
    return json.dumps(chat("deep")).replace('"deep"', "[" * depth + "]" * depth)


FAILED: dict[str, tuple[Answer, str]] = {
    "401": (Answer({"error": {"message": "no key"}}, 401), "a valid API key; set SPECDEMO_API_KEY (401: no key)."),
    "404": (Answer({"error": {"message": "no model tiny"}}, 404), "(404: no model tiny)"),
    "429": (Answer({"error": "slow down"}, 429), "too many requests; run again later, or raise its limit (429: slow"),
    "503": (Answer({"error": {"message": "Loading"}}, 503), "perhaps still loading; run again later (503: Loading)"),
    "500": (Answer({"object": "error", "message": "out of memory"}, 500), "an error (500: out of memory)"),
    "502": (Answer("<html><TITLE>502 Bad Gateway</TITLE>", 502), "(502: a web page, '502 Bad Gateway')"),
    "302": (Answer("", 302, headers={"Location": "http://192.0.2.1/"}), "redirects to another address; give that"),
    "addresses": (Answer({"error": "http://10.0.0.7/v1, 10.0.0.8:80, 10.0.0.9"}, 500), "(500: …, …, …)"),
    "escapes": (Answer({"error": "\x1b[31mred\n\x00"}, 500), "(500: [31mred)"),
    "undecodable": (Answer({}, headers={"Content-Encoding": "gzip"}), "switch compression off"),
    "error": (Answer(stream=frames({"error": {"message": "evicted"}})), "in the middle of its answer: evicted"),
    "error field": (Answer(stream=(*EVENTS[:2], b'error: {"message":"evicted"}\n\n')), "evicted"),
    "error line": (Answer(stream=(*EVENTS[:2], b'{"error": {"message": "evicted"}}\n')), "evicted"),
    "error text at the end": (Answer(stream=(*EVENTS[:2], "evicted")), "evicted"),
    "error event": (Answer(stream=frames(b"event: error\ndata: evicted\n\n")), "answer: evicted"),
    "choices null": (Answer(stream=frames({"choices": None, "message": "evicted"})), "answer: evicted"),
    "in a choice": (Answer(stream=frames({"choices": [{"error": {"message": "evicted"}}]})), "answer: evicted"),
    "200 with an error": (Answer({"error": {"message": "no slots"}}), "answered with an error: no slots"),
    "in one piece": (Answer({"choices": [{"message": {"content": "Hi"}}]}), "answered in one piece"),
    "a page": (Answer("<!doctype html>\n<html><title>Chat\nUI</title>"), "JSON object (a web page, 'Chat\\nUI')"),
    "text": (Answer("Ollama is running"), "JSON object (Ollama is running)"),
    "half an event": (Answer(stream=(*EVENTS[:2], b'data: {"choices": [')), "sent an event that is not JSON"),
    "deep": (Answer(stream=("[" * 100_000, '{"a":' * 100_000)), "sent an event that is not JSON"),
    "broken off": (Answer(stream=EVENTS[:3], broken=True), "ended its answer early"),
    "no text": (Answer(stream=("[DONE]",)), "ended its answer before any text"),
    "other types": (Answer(stream=(*EVENTS[:2], {"choices": 3})), "unknown format ('int' object is not iterable)"),
    "deep content": (Answer(stream=frames(nested(900))), "unknown format (maximum recursion depth exceeded)"),
    "many lists": (
        Answer(stream=frames(b'data: {"usage": [' + b"[]," * 2**18 + b"[]]}\n\n")),
        "an event that is not JSON",
    ),
    "too many ids": (Answer(stream=(many_ids(10**6), *EVENTS)), "sends more tokens than any answer needs"),
    "too many ids in all": (Answer(stream=[many_ids(1000)] * 3), "sends more tokens than any answer needs"),
    "too long a text": (Answer(stream=frames(chat("x" * 2**20), chat("x"))), "sends more text than any answer needs"),
    "many titles": (Answer("<title>" * 9000 + "Chat"), "JSON object (a web page)"),
    "spaces at the end": (Answer(stream=(*EVENTS[:2], b"data: " + b" " * 60_000 + b"evicted")), "evicted"),
}


@pytest.mark.parametrize("what", FAILED)
def test_a_failure_is_the_servers_own_reason(what: str) -> None:
    answer, words = FAILED[what]
    with pytest.raises(ServerError, match=r"^The speculative server ") as error:
        run({**answers(), CHAT: answer})
    assert words in str(error.value)
    assert not re.search(r"127\.0\.0|10\.0\.0", str(error.value))


def no_warm_up(*_: Any) -> Generator[Any, None, dict[Any, Any]]:
    yield from ()
    return {}


def test_a_failure_keeps_the_text_and_the_other_side() -> None:
    with mock.patch("specdemo.racing.race.warm_up_sides", no_warm_up):
        comparison = compare(answers(), {**answers(), CHAT: FAILED["error"][0]})
    assert comparison.failures["speculative"].endswith("evicted")
    assert (comparison.plain.text, comparison.speculative.text) == (TEXT, "The")
    assert comparison.speculative.finish_reason == "failed"


@pytest.mark.parametrize("mode", MISBEHAVING)
def test_a_misbehaving_server_fails_soon_with_a_reason_and_little_memory(mode: str) -> None:
    before, began = psutil.Process().memory_info().rss, monotonic()
    path = "/v1/models" if "list" in mode else CHAT
    with pytest.raises(ServerError, match=r"^The speculative server .*\.$"):
        run({**answers(), path: Answer(raw=MISBEHAVING[mode])}, kind="openai", silence_seconds=0.5)
    assert monotonic() - began < 30
    assert psutil.Process().memory_info().rss - before < 400 * 2**20


def test_any_failure_to_read_an_answer_is_reported_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Client, "_parsed_event", mock.Mock(side_effect=RecursionError))
    with pytest.raises(ServerError, match="cannot be read"):
        run(answers())
    assert "RecursionError" in caplog.text


@pytest.mark.parametrize("option", ["stream_options", "return_token_ids", "return_spec_tokens_details"])
@pytest.mark.parametrize("streamed", [False, True])
def test_an_option_that_a_server_refuses_is_left_out(option: str, *, streamed: bool) -> None:
    refusal = Answer({"detail": [{"loc": ["body", option], "msg": "Extra inputs are not permitted"}]}, 422)
    if streamed:
        refusal = Answer(stream=({"error": {"message": f"{option} is not supported with streaming"}}, "[DONE]"))
    refused = list[str]()

    def answer(path: str, body: dict[str, Any]) -> Answer | None:
        refused.extend([path] * (option in body))
        return refusal if option in body else answers(*EVENTS[:5], "[DONE]").get(path)

    with engine_of(None, answer) as engine:
        assert [answered(engine).text for _ in range(2)] == [TEXT] * 2
    assert refused == [CHAT], "once"


def test_a_retry_without_a_refused_option_has_its_own_silence_limit() -> None:
    def slowly() -> Iterator[Any]:
        for event in EVENTS:
            sleep(0.2)
            yield event

    def answer(path: str, body: dict[str, Any]) -> Answer | None:
        if "stream_options" in body:
            return Answer({"error": "stream_options"}, 400)
        return {**answers(), CHAT: Answer(stream=slowly())}.get(path)

    with engine_of(None, answer, silence_seconds=1.0, kind="openai") as engine:
        assert answered(engine).text == TEXT


def test_one_server_runs_alone() -> None:
    comparison = compare(None, answers())
    assert (comparison.plain.finish_reason, comparison.speculative.text) == ("absent", TEXT)
    assert compare(answers(), None).plain.text == TEXT


def test_a_server_is_found_by_any_of_its_addresses() -> None:
    for prefix in ("/v1", "/v3", "", "/openai/v1", "/v1beta/openai"):
        with fake({f"{prefix}/models": models("tiny")}) as server:
            bases = [server.url + prefix] + ([server.url] if prefix in ("/v1", "/v3") else [])
            for base in bases:
                for end in ("", "/chat/completions") if prefix != "/v1" else ("/", "/completions", "/models"):
                    assert pair_at(base + end) == "tiny"
    for url in ("http://[::1", "http://localhost:port", "http://:80", "localhost:80", "http://me:secret@localhost"):
        with pytest.raises(UsageError, match="Invalid URL of the"):
            pair_at(url)
    with pytest.raises(UsageError, match="--url"):
        server_pair(Servers())


def test_a_server_that_does_not_list_its_models_needs_a_name() -> None:
    unlisted = "has no such model or address; check both, and --model (404: no such path)"
    for found, words in (
        ({CHAT: answers()[CHAT]}, unlisted),
        ({**answers(), "/v1/models": Answer({"data": []})}, "does not list its models; name one with --model"),
    ):
        with pytest.raises(ServerError, match=re.escape(words)):
            run(found)
        assert run(found, model="tiny").text == TEXT


def completion(**changed: Any) -> dict[str, Any]:
    counts = {"tokens": [1], "tokens_predicted": 1, "timings": {"predicted_ms": 1}}
    return {"content": "Hi", "stop": False, **counts, **changed}


PROPS = Answer({"default_generation_settings": {"n_ctx": 512}, "chat_template": "{{ messages }}", "build_info": "b1"})
END = {"content": "", "stop": True, "stop_type": "limit", "tokens_predicted": 2, "timings": {"predicted_ms": 2}}
TWO = (completion(), completion(content="!", tokens_predicted=2, timings={"predicted_ms": 2}), END)
IMITATIONS: dict[str, dict[str, Answer]] = {
    "a JSON object for every path": {"/props": Answer({"version": "1"}), "/version": Answer({"version": "1"})},
    "no counts": {"/props": PROPS, "/completion": Answer(stream=({"content": "Hi", "stop": False}, END))},
    "no tokens": {"/props": PROPS, "/completion": Answer(stream=(completion(tokens_predicted=0), END))},
    "an error": {"/props": PROPS, "/completion": Answer(stream=({"error": "not supported"},))},
    "no stream": {"/props": PROPS, "/completion": Answer({"content": "Hi"})},
}


@pytest.mark.parametrize("what", IMITATIONS)
def test_servers_that_resemble_llama_cpp_get_openais_protocol(what: str) -> None:
    with engine_of(None, {**answers(), **IMITATIONS[what]}) as engine:
        assert engine.pair.target.server == "openai"
        assert (answered(engine).text, answered(engine).passes_known) == (TEXT, False)


LLAMA_CPP = {"/props": PROPS, "/v1/models": models("tiny"), "/apply-template": Answer({"prompt": "Say"})}


def test_incomplete_counts_are_ignored() -> None:
    for stream in ((completion(), {"content": "!", "stop": False}, END), (completion(timings={}), END)):
        with pytest.raises(ServerError, match=r"unknown format \(.+\); name its kind with --server"):
            run({**LLAMA_CPP, "/completion": Answer(stream=stream)}, kind="llama.cpp")
    assert run({"/props": PROPS, CHAT: answers()[CHAT]}, model="tiny").text == TEXT, "what lists no models"
    busy = Answer(waits=lambda: Event().wait(0.6))
    with pytest.raises(ServerError, match="has sent nothing"):
        run({**answers(), **LLAMA_CPP, "/completion": busy}, silence_seconds=0.3)
    with pytest.raises(ServerError, match="perhaps still loading"):
        run({**answers(), "/props": Answer({"error": {"message": "Loading model"}}, 503)})
    with pytest.raises(ServerError, match="requires a valid API key"):
        run({**answers(), "/props": Answer({}, 401)})


HUGE: dict[str, dict[str, Any]] = {
    "timings.draft_n": {"timings": {"predicted_ms": 1, "draft_n": 10**9}},
    "timings.draft_n_accepted": {"timings": {"predicted_ms": 1, "draft_n_accepted": -1}},
    "timings.predicted_ms": {"timings": {"predicted_ms": float("nan")}},
    "tokens_predicted": {"tokens_predicted": 10**9},
    "tokens": {"tokens": [1] * 10**6},
    "prompt_progress.total": {"prompt_progress": {"total": 10**30, "processed": 1}},
    "50000 proposals": {"tokens_predicted": 3, "timings": {"predicted_ms": 2, "draft_n": 100_000}},
}


@pytest.mark.parametrize("field", HUGE)
def test_impossible_counts_are_refused_at_once_with_the_servers_name(field: str) -> None:
    stream = completion(), completion(**HUGE[field]), completion(tokens_predicted=4, timings={"predicted_ms": 3}), END
    before = psutil.Process().memory_info().rss
    with pytest.raises(ServerError, match=rf"speculative server answered in an unknown format \(.*{field}"):
        run({**LLAMA_CPP, "/completion": Answer(stream=stream)}, kind="llama.cpp", silence_seconds=30)
    assert psutil.Process().memory_info().rss - before < 100 * 2**20


@pytest.mark.parametrize("name", ["x" * 7 * 2**20, "", 3, None])
def test_an_unusable_model_name_is_the_servers_fault(name: Any) -> None:
    with pytest.raises(ServerError, match=r"^The speculative server lists a model without a usable name \(.{,330}$"):
        run({**answers(), "/v1/models": models(name)})
    assert run({**answers(), "/v1/models": models("tiny\ud800")}).text == TEXT, "half a character is replaced"


def test_a_server_applies_its_chat_template_unless_it_is_switched_off() -> None:
    templated = Answer({"prompt": "<user>Say<assistant>"})
    with fake({**LLAMA_CPP, "/apply-template": templated, "/completion": Answer(stream=TWO)}) as server:
        pair = server_pair(Servers(speculative=Server(url=f"{server.url}/v1/chat/completions")))
        assert (pair.target.server, pair.target.chat_template) == ("llama.cpp", True)
        with closing(ServerEngine(pair)) as engine:
            answered(engine)
            answered(engine, apply_chat_template=False)
    assert [body["prompt"] for body in server.bodies["/completion"]][-2:] == ["<user>Say<assistant>", "Say"]


def test_request_bodies() -> None:
    keys = {"SPECDEMO_API_KEY": "secret\r\n"}
    with fake(answers()) as plain, fake(answers()) as other, mock.patch.dict(os.environ, keys):
        servers = Servers(plain=Server(url=plain.url), speculative=Server(url=other.url))
        with closing(ServerEngine(server_pair(servers))) as engine:
            answered(engine, do_sample=True, top_k=7, seed=5)
            run_alone(engine.decoder(Request.of("Say", pair_settings(engine.pair, enable_thinking=False)).plain))
    assert set(other.keys) == {"Bearer secret"}
    assert set(plain.keys) == {None}, "a key for one host is not sent to another"
    (sent,), (bare,) = other.bodies[CHAT], plain.bodies[CHAT]
    assert (sent["temperature"], sent["top_k"], sent["seed"]) == (0.8, 7, 5)
    assert sent["messages"] == [{"role": "user", "content": "Say"}]
    assert bare["chat_template_kwargs"] == {"enable_thinking": False}
    assert not {"top_k", "ignore_eos", "repetition_penalty"} & set(bare), "what changes nothing may be refused"


def test_a_missing_key_is_named_by_the_variable_of_its_side() -> None:
    closed = {"/v1/models": Answer({"error": "no key"}, 401)}
    with fake(closed) as one, fake(closed) as other:
        here, elsewhere = Server(url=one.url), Server(url=other.url)
        for plain, speculative, own, name in (
            (None, here, "", ""),
            (here, here, "", ""),
            (here, here, "own", "PLAIN_"),
            (here, elsewhere, "", "PLAIN_"),
        ):
            keys = {"SPECDEMO_API_KEY": "secret", "SPECDEMO_PLAIN_API_KEY": own}
            with mock.patch.dict(os.environ, keys), pytest.raises(ServerError, match=f"set SPECDEMO_{name}API_KEY "):
                server_pair(Servers(plain=plain, speculative=speculative))
    for key in ("sëcret", "se\ncret"):
        with mock.patch.dict(os.environ, {"SPECDEMO_API_KEY": key}), pytest.raises(UsageError) as error:
            pair_at(one.url)
        assert "set SPECDEMO_API_KEY again" in str(error.value)
        assert error.value.__cause__ is None


def test_proxies_are_for_other_machines() -> None:
    def found(url: str, **environment: str) -> str:
        with mock.patch.dict(os.environ, environment, clear=True):
            return pair_at(url)

    with fake(answers()) as server, fake(lambda path, body: models("proxied")) as proxy:
        for variable in ("http_proxy", "ALL_PROXY"):
            for here in (server.url, server.url.replace("127.0.0.1", "localhost")):
                assert found(here, **{variable: proxy.url}) == "tiny"
            assert found("http://model.invalid", **{variable: proxy.url}) == "proxied"
            with pytest.raises(ServerError, match="cannot be reached"):
                found("http://model.invalid", NO_PROXY="model.invalid", **{variable: proxy.url})
        assert found(server.url, ALL_PROXY="socks5://127.0.0.1:9") == "tiny"
    with mock.patch.dict("sys.modules", socksio=None), pytest.raises(UsageError, match=r"used .*httpx\[socks\]"):
        found("http://model.invalid", ALL_PROXY="socks5://127.0.0.1:9")
    with socket.socket() as unheard:  # reserves a port without listening on it
        unheard.bind(("127.0.0.1", 0))
        with pytest.raises(ServerError, match=r"The speculative server cannot be reached \(All connection attempts"):
            found(f"http://127.0.0.1:{unheard.getsockname()[1]}")


def test_a_batch_refuses_a_prompt_and_fails_with_its_server() -> None:
    with engine_of(None, {**answers(), CHAT: FAILED["429"][0]}) as engine:
        request = Request.of("Say", pair_settings(engine.pair))
        with closing(engine.batch(ServerDefault())) as batch:
            with pytest.raises(PromptError, match="not text"):
                batch.submit(0, replace(request, prompt="Say \ud800"))
            with pytest.raises(ServerError, match="too many"):
                run_block(batch, repeat(request), 1, 1)
