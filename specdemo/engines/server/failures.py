"""What a server means by an answer that is no success: errors in every form that servers use, as sentences."""

import json
import re
from typing import Any

_QUOTED = 300  # characters quoted of a server's own words
_READ = 2**16  # characters of a text searched for a page's title
_ADDRESSES = r"\w+://[^\s\"'<>,;]+|\b\d+(?:\.\d+){3}(?::\d+)?\b"
_SENTENCES = {
    401: "requires a valid API key; set {variable}",
    403: "does not let this API key use the model; set {variable} to one that may",
    404: "knows no such model or address; check both, and --model",
    429: "has too many requests; run again later, or raise its limit",
    502: "is behind a gateway that cannot reach it; check that it is running",
    503: "is not ready, perhaps still loading; run again later",
    504: "is behind a gateway that gave up waiting; see its log",
}


def redacted(said: object, address: str) -> str:
    """Return what the server at an address said, on one line and without addresses."""
    while isinstance(said, dict) or (isinstance(said, list) and said and isinstance(said[0], dict)):
        said = said[0] if isinstance(said, list) else said
        keys = ("error", "errors", "message", "error_msg", "detail", "msg")
        said = next((said[key] for key in keys if said.get(key)), json.dumps(said))
    text = said if isinstance(said, str) else json.dumps(said)
    if page := re.match(r"\s*<(?:.*?<title>(.*?)</title>)?", text[:_READ], re.DOTALL | re.IGNORECASE):
        text = f"a web page, {page[1]!r}" if page[1] else "a web page"
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text[:2000]).split())
    text = re.sub(f"{_ADDRESSES}|{re.escape(address)}", "…", text)
    return text if len(text) <= _QUOTED else text[:_QUOTED] + " …"


def describe(status: int, text: str, address: str, key_variable: str, *, streamed: bool) -> str:
    """Return what is wrong with an answer, as a predicate of the server; `streamed` if a stream was asked for."""
    content = parsed(text)
    said = redacted(content or text, address)
    if not 200 <= status < 300:
        sentence = "redirects to another address; give that one" if status < 400 else "answered with an error"
        sentence = _SENTENCES.get(status, sentence).format(variable=key_variable)
        return f"{sentence} ({status}{': ' if said else ''}{said})."
    if streamed and (not text.strip() or re.search(r"^(data|event|id|retry|error)?:", text, re.MULTILINE)):
        reason = _last_words(text)
        if reason:
            return f"failed in the middle of its answer: {redacted(reason, address)}"
        return "broke its answer off; see its log, and run again."
    if streamed and usable_object(status, text) is not None:
        return "answered in one piece, which cannot be timed; have it stream its answers."
    if error_in(content) is not None:
        return f"answered with an error: {said}"
    return f"sent no JSON object ({said}); check that this is an OpenAI-compatible server."


def parsed(text: str) -> Any:
    """Parse JSON, also with NaN or half a surrogate pair, which servers write; None if it is not."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def usable_object(status: int, text: str) -> dict[str, Any] | None:
    found = parsed(text) if 200 <= status < 300 else None
    return found if isinstance(found, dict) and error_in(found) is None else None


def error_in(data: object) -> object | None:
    """Return what an object says of an error, or None; `"error": null` is none."""
    if not isinstance(data, dict):
        return None
    choices = data.get("choices") or ()
    if data.get("object") == "error" or any(data.get(key) for key in ("error", "errors", "error_msg")):
        return data
    if not choices and (isinstance(data.get("message"), str) or data.get("detail")):
        return data
    first = choices[0] if isinstance(choices, list) and isinstance(choices[0], dict) else {}
    return (first.get("error") or data) if first.get("finish_reason") in ("error", "abort") else first.get("error")


def _last_words(text: str) -> object | None:
    """Return what the last line of a stream says of an error, or None."""
    lines = re.findall(r"^(?!event:|id:|retry:|:)(?:data:|(error:))? *(.*\S)", text, re.MULTILINE)
    field, said = lines[-1] if lines else ("", "{}")
    found = parsed(said)
    return found or said if field or found is None else error_in(found)


def is_finished(data: dict[str, Any]) -> bool:
    choices = data.get("choices")
    return isinstance(choices, list) and any(isinstance(one, dict) and one.get("finish_reason") for one in choices)
