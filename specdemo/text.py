"""Foreign text made safe to show in terminal and page, and numbers in words."""

import re

# Control characters, which begin escape sequences, line separators, and marks that reorder the text after them.
_CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
_HIDDEN, _HIDDEN_OR_LINE = re.compile(f"[{_CONTROLS}]"), re.compile(rf"[{_CONTROLS}\t\n]")
_FOLDERS = re.compile(r"(?<![\w:/.])(?:~|[A-Za-z]:)?(?:[/\\][^/\\\s'\":,;()]+)+[/\\]")


def printable(text: str, *, lines: bool = False) -> str:
    """Escape control characters and reordering marks, as \\x1b; with `lines`, line breaks and tabs stay."""
    return (_HIDDEN if lines else _HIDDEN_OR_LINE).sub(_escaped, text.replace("\r\n", "\n") if lines else text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def without_folders(text: str) -> str:
    """Cut paths to their last part: visitors need not know the server's folders."""
    return _FOLDERS.sub("", text)


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def parameters(count: int) -> str:
    """Such as 1.1M or 7.0B."""
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1000:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
