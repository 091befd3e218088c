"""Sentences for answers that failed. Servers report errors in many forms, sometimes with status 200."""

import json
import re
from typing import Any

_MAX_QUOTED = 300  # characters of a server's message
_TITLE_SEARCH = 2**16  # characters in which the title of a web page must be
_MAX_BRACKETS = 200_000  # of JSON; a list of a thousand models has 20,000, and empty lists take 20 times their text
_ADDRESSES = r"\w+://[^\s\"'<>,;]+|\b\d+(?:\.\d+){3}(?::\d+)?\b"
_SENTENCES = {
    401: "requires a valid API key; set {variable}",
    403: "does not let this API key use the model; set {variable} to one that may",
    404: "has no such model or address; check both, and --model",
    429: "has too many requests; run again later, or raise its limit",
    502: "is behind a gateway that cannot reach it; check that it is running",
    503: "is not ready, perhaps still loading; run again later",
    504: "is behind a gateway that gave up waiting; see its log",
}


class ExcessError(ValueError):
    """Completes the sentence "The server sends more … than any answer needs"."""


def redact(message: Any, address: str) -> str:
    """Return a message of the server at an address, on one line and without addresses."""
    while isinstance(message, dict) or (isinstance(message, list) and message and isinstance(message[0], dict)):
        if isinstance(message, list):
            message = message[0]
        keys = ("error", "errors", "message", "error_msg", "detail", "msg")
        message = next((message[key] for key in keys if message.get(key)), json.dumps(message))
    text = message if isinstance(message, str) else json.dumps(message)
    if text.lstrip().startswith("<"):
        title = re.split(r"</?title>", text[:_TITLE_SEARCH], maxsplit=2, flags=re.IGNORECASE)[1:2]
        text = ", ".join(["a web page", *map(repr, filter(None, title))])
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text[:2000]).split())
    text = re.sub(f"{_ADDRESSES}|{re.escape(address)}", "…", text)
    return text if len(text) <= _MAX_QUOTED else text[:_MAX_QUOTED] + " …"


def describe(status: int, text: str, address: str, key_variable: str, *, streamed: bool) -> str:
    """Complete the sentence "The server …" about a failed answer; `streamed`: the request asked for a stream."""
    content = parse_json(text)
    message = redact(content or text, address)
    if not 200 <= status < 300:
        sentence = "redirects to another address; give that one" if status < 400 else "answered with an error"
        sentence = _SENTENCES.get(status, sentence).format(variable=key_variable)
        return f"{sentence} ({status}{': ' if message else ''}{message})."
    if streamed and (not text.strip() or re.search(r"^(data|event|id|retry|error)?:", text, re.MULTILINE)):
        last = " ".join(text.rstrip().rpartition("\n")[2].split())
        event = parse_json(last.removeprefix("data:"))
        is_usual = not last or (event is not None and error_in(event) is None)
        reason = "" if is_usual else f" ({redact(event or last, address)})"
        return f"ended its answer early{reason}; see its log, and run again."
    if streamed and usable_object(status, text) is not None:
        return "answered in one piece, which cannot be timed; make it stream its answers."
    if error_in(content) is not None:
        return f"answered with an error: {message}"
    return f"did not send a JSON object ({message}); check that this is an OpenAI-compatible server."


def parse_json(text: str) -> Any:
    """Parse JSON, or return None. NaN is accepted and lone surrogates are replaced, since servers write them."""
    if text.count("[") + text.count("{") > _MAX_BRACKETS:
        return None
    try:
        value = json.loads(text)
        if re.search(r"\\u[dD][89a-fA-F]", text):
            halves = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
            value = json.loads(halves.decode("utf-16", "replace"))
    except (ValueError, RecursionError):
        return None
    return value


def usable_object(status: int, text: str) -> dict[str, Any] | None:
    data = parse_json(text) if 200 <= status < 300 else None
    return data if isinstance(data, dict) and error_in(data) is None else None


def error_in(data: object) -> object | None:
    """Return the error that an object reports, or None; `"error": null` is no error."""
    if not isinstance(data, dict):
        return None
    choices = data.get("choices") or ()
    if data.get("object") == "error" or any(data.get(key) for key in ("error", "errors", "error_msg")):
        return data
    if not choices and (isinstance(data.get("message"), str) or data.get("detail")):
        return data
    first = choices[0] if isinstance(choices, list) and isinstance(choices[0], dict) else {}
    return (first.get("error") or data) if first.get("finish_reason") in ("error", "abort") else first.get("error")


def is_finished(data: dict[str, Any]) -> bool:
    choices = data.get("choices")
    choices = choices if isinstance(choices, list) else []
    return any(isinstance(choice, dict) and choice.get("finish_reason") for choice in choices)
