"""A server on this machine that gives recorded answers, in the formats that vLLM, OpenVINO Model Server and SGLang
document, and in formats that nobody documents."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass(frozen=True)
class Answer:
    """One answer: an object or lines of a stream; `broken`: the connection is cut instead of ended."""

    body: Any = None
    status: int = 200
    stream: tuple[Any, ...] = ()
    broken: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    begins: Callable[[], object] = lambda: None
    waits: Callable[[], object] = lambda: None

    @property
    def lines(self) -> Iterator[str]:
        """A stream's lines: objects as events, text as it is."""
        for event in self.stream:
            yield f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n"


@dataclass
class FakeServer:
    """Answers by path; it keeps what it was sent."""

    url: str
    answers: Mapping[str, Answer]
    bodies: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    keys: list[str | None] = field(default_factory=list)


@contextmanager
def fake(answers: Mapping[str, Answer]) -> Iterator[FakeServer]:
    """A server that gives these answers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            server.bodies.setdefault(self.path, []).append(json.loads(self.rfile.read(length)))
            self._answer()

        def _answer(self) -> None:
            server.keys.append(self.headers.get("Authorization"))
            answer = server.answers.get(self.path, Answer({"error": "no such path"}, 404))
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Connection", "close")  # told, so that no client sends its next request into the end
            if not answer.stream:
                text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                answer.waits()
                self.wfile.write(text.encode())
                return
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            answer.begins()
            for line in answer.lines:
                data = line.encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            answer.waits()
            if not answer.broken:
                self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: Any) -> None:
            pass

    class Busy(ThreadingHTTPServer):
        request_queue_size = 256  # many connect at once

    with Busy(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        server = FakeServer(f"http://127.0.0.1:{http.server_port}", answers)
        thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()


def chat(text: str, *, usage: int | None = None, **choice: Any) -> dict[str, Any]:
    """An event of a chat completion."""
    event: dict[str, Any] = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None, **choice}]}
    return event if usage is None else {**event, "usage": {"completion_tokens": usage}}


def models(*names: str) -> Answer:
    """The list of models."""
    return Answer(
        {"object": "list", "data": [{"id": name, "object": "model", "max_model_len": 4096} for name in names]}
    )


VLLM_STEPS = {"per_step_drafted": [3, 3, 3], "per_step_accepted": [2, 0, 1]}
VLLM_END: dict[str, Any] = {
    "choices": [],
    "usage": {"prompt_tokens": 9, "completion_tokens": 7},
    "metrics": {
        "speculative_decoding": {
            "mean_acceptance_length": 2.0,
            "num_spec_steps": 3,
            "num_accepted_draft_tokens": 3,
            "num_draft_tokens": 9,
            **VLLM_STEPS,
        }
    },
}
VLLM_EVENTS = (
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
    chat("The", usage=1, token_ids=[10]),
    chat(" cat sat on", usage=4, token_ids=[11, 12, 13]),
    chat(" the", usage=5, token_ids=[14]),
    chat(" red mat", usage=7, token_ids=[15, 16], finish_reason="length"),
)
VLLM = {
    "/version": Answer({"version": "0.32.0"}),
    "/v1/models": models("tiny"),
    "/v1/chat/completions": Answer(stream=(*VLLM_EVENTS, VLLM_END, "[DONE]")),
}
OVMS = {
    "/v1/config": Answer({"tiny": {"model_version_status": [{"version": "1", "state": "AVAILABLE"}]}}),
    "/v3/models": models("tiny"),
    "/v3/chat/completions": Answer(
        stream=(
            chat("The"),
            chat(" cat sat"),
            chat(" on the mat", finish_reason="stop"),
            {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 6, "total_tokens": 15}},
            "[DONE]",
        )
    ),
}


def _generated(text: str, tokens: int, passes: int, end: str | None = None) -> dict[str, Any]:
    """An event of SGLang's own protocol."""
    verified = {
        "spec_verify_ct": passes,
        "spec_accept_token_num": tokens - 1 - passes,
        "spec_draft_token_num": 3 * passes,
    }
    reason = None if end is None else {"type": end, "length": tokens}
    return {"text": text, "meta_info": {"completion_tokens": tokens, "finish_reason": reason, **verified}}


SGLANG = {
    "/get_model_info": Answer({"model_path": "tiny", "is_generation": True}),
    "/get_server_info": Answer({"version": "0.6.0", "speculative_num_draft_tokens": 4}),
    "/v1/models": models("tiny"),
    "/generate": Answer(
        stream=(
            _generated("The", 1, 0),
            _generated("The cat sat on", 4, 1),
            _generated("The cat sat on the", 5, 2),
            _generated("The cat sat on the red mat", 7, 3, end="length"),
            "[DONE]",
        )
    ),
}
