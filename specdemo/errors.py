"""Errors shown to users. Each message is one sentence that ends with what to do; `cause` has the original message.

Of their classes, at the end of this file, a UsageError means that nothing was started.
"""

import errno
import logging
import re
import traceback
from collections.abc import Iterator, Sequence
from reprlib import Repr
from typing import Any, Self

_MAX_CHARACTERS = 200
_repr = Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = _MAX_CHARACTERS


def quoted(value: object) -> str:
    """Quote user input for an error message, cutting the middle beyond about 200 characters."""
    return _repr.repr(value)


def capitalised(text: str) -> str:
    """Capitalise the first letter only; `str.capitalize` would lower the others."""
    return text[:1].upper() + text[1:]


def listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


class SpecdemoError(Exception):
    """Root of all errors whose message is shown to users. `cause` is the message of the original exception, such as
    OpenVINO's, and `trace` its traceback. Both survive pickling, so they arrive from a child process.
    """

    _cause = _trace = ""
    _logged = False
    ended = False  # whether the child process ended before its work

    @classmethod
    def of(cls, error: BaseException, what: str, advice: str) -> Self:
        known = known_cause(error)
        return cls(f"{what}; {advice}." if known is None else f"{what}: {known[0]}; {known[1]}.").because(error)

    def because(self, cause: BaseException | str) -> Self:
        self._cause = cause if isinstance(cause, str) else messages_of(cause)
        return self

    @property
    def cause(self) -> str:
        return self._cause or messages_of(self.__cause__)

    @property
    def trace(self) -> str:
        return self._trace or "".join(traceback.format_exception(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, self.__dict__ | {"_cause": self.cause, "_trace": self.trace})

    def log(self) -> None:
        """Log this error once, with its traceback, unless only the request was wrong."""
        if not self._logged:
            self._logged = True
            level = logging.DEBUG if isinstance(self, UsageError) else logging.ERROR
            logging.getLogger("specdemo").log(level, "%s\n%s", self, self.trace)


def _rebuilt(kind: type[SpecdemoError], arguments: tuple[Any, ...], state: dict[str, Any]) -> SpecdemoError:
    error = kind(*arguments)
    error.__dict__.update(state)
    return error


ENGINE_FAILED = "The engine failed in this run and has been reset"
OPENVINO_FAILURES = (RuntimeError, MemoryError)  # of OpenVINO's Python bindings: a `bad_alloc` becomes a MemoryError
_MAX_CAUSE = 1000  # characters shown; the log has everything

_MEMORY = ("there is not enough memory", "free some, or choose a smaller model")
_FILES = ("this process can open no more files", "raise the limit, as with ulimit -n 1024, and start it again")
_DISK = ("the disk is full", "free some space")
_THREADS = ("the system refuses another thread, or more memory", "raise its limits, or choose fewer threads")
_BY_NUMBER = {
    errno.ENOMEM: _MEMORY,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.ENOSPC: _DISK,
    errno.EAGAIN: _THREADS,
    errno.EDQUOT: _DISK,
}
# OpenVINO reports a failed system call as text, without an error number.
_BY_TEXT = {
    re.compile(r"bad_alloc|n.t alloc|out of .*memory|failed to allocate", re.IGNORECASE): _MEMORY,
    re.compile(r"too many open files", re.IGNORECASE): _FILES,
    re.compile(r"resource temporarily unavailable", re.IGNORECASE): _THREADS,
    re.compile(r"no space left|disk is full", re.IGNORECASE): _DISK,
}


def _chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and its chain of causes, each once, since a chain can be circular."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def messages_of(error: BaseException | None) -> str:
    lines = list[str]()
    for link in _chain_of(error):
        kind = type(link).__name__
        if isinstance(link, SpecdemoError):
            lines += [str(link), link._cause]
        elif isinstance(link, OSError) and link.errno is not None:  # the sentence already names the file
            lines.append(f"{kind}: [Errno {link.errno}] {link.strerror}")
        else:
            lines.append(f"{kind}: {link}".removesuffix(": "))
    return "\n".join(dict.fromkeys(filter(None, lines)))[:_MAX_CAUSE].strip()


def known_cause(error: BaseException) -> tuple[str, str] | None:
    for link in _chain_of(error):
        if isinstance(link, MemoryError):
            return _MEMORY
        if isinstance(link, OSError) and link.errno in _BY_NUMBER:
            return _BY_NUMBER[link.errno]
        for pattern, reason in _BY_TEXT.items():
            if pattern.search(str(link)):
                return reason
    return None


class UsageError(SpecdemoError): ...  # the request cannot be run


class SettingsError(UsageError): ...  # a setting is out of range, or two contradict each other


class PromptError(UsageError): ...  # empty, or too long for the model


class FileError(UsageError): ...  # not what was expected


class DeviceError(UsageError): ...  # this machine has no such device


class UnknownNameError(UsageError): ...  # no model, or no pair, has this name


class ModelError(SpecdemoError): ...  # a model's folder or file cannot be used


class FolderError(ModelError): ...  # missing, empty, incomplete, or not OpenVINO IR


class GGUFError(ModelError): ...  # incomplete, of an unsupported kind, or not GGUF


class PairError(ModelError): ...  # target and draft do not fit each other


class LoadError(ModelError): ...  # OpenVINO refused to load it


class FetchError(SpecdemoError): ...  # a model could not be fetched or converted


class RunError(SpecdemoError): ...  # a run that had started could not continue


class EngineError(RunError):
    def __init__(self, message: str = f"{ENGINE_FAILED}; run again.") -> None:
        super().__init__(message)

    @classmethod
    def of(cls, error: BaseException, what: str = ENGINE_FAILED, advice: str = "run again") -> Self:
        return super().of(error, what, advice)


class ServerError(RunError): ...  # a server did not answer as it should
