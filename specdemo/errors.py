"""Errors that users can meet. Each message is one sentence that ends with what to do.

SpecdemoError
├── UsageError            the request cannot be run; nothing was started
│   ├── SettingsError     a setting is out of range, or two settings contradict each other
│   ├── PromptError       the prompt is empty, or too long for the model
│   ├── FileError         a file is not what was expected
│   ├── UnknownNameError  there is no model, or no pair, of this name
│   └── DeviceError       this machine has no such device
├── ModelError            a model's folder or file cannot be used
│   ├── FolderError       missing, empty, incomplete, not OpenVINO IR
│   ├── GGUFError         not a GGUF file, incomplete, or of an unsupported kind
│   ├── PairError         target and draft do not fit each other
│   └── LoadError         OpenVINO refused to load it
├── FetchError            a model could not be fetched; downloads resume
│   ├── AccessError       its licence, or the token, is not accepted
│   ├── MissingError      the Hub has no such repository
│   ├── NetworkError      offline, unreachable, or disconnected
│   ├── DiskError         the disk is too small
│   └── ConversionError   the model could not be converted to OpenVINO
└── RunError              a run that had started could not continue
    ├── CacheError        the KV cache is too small for this run, or for this machine
    ├── EngineError       the engine failed; it is rebuilt before the next run
    └── ServerError       a server did not answer as it should
"""

from collections.abc import Sequence
from reprlib import Repr

_QUOTED = 200
_repr = Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = _QUOTED


def quoted(given: object) -> str:
    """Quote user input for an error message, cutting the middle beyond about 200 characters."""
    return _repr.repr(given)


def capitalised(text: str) -> str:
    """Begin a sentence with a capital, keeping those within, unlike `str.capitalize`."""
    return text[:1].upper() + text[1:]


def listed(names: Sequence[str]) -> str:
    """Join names as in a sentence: "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


class SpecdemoError(Exception):
    """Root of all errors that are shown to the user as they are, without a traceback."""


class UsageError(SpecdemoError):
    """The request cannot be run; nothing was started."""


class SettingsError(UsageError):
    """A setting is out of range, or two settings contradict each other."""


class PromptError(UsageError):
    """The prompt is empty, or too long for the model."""


class FileError(UsageError):
    """A file is not what was expected."""


class DeviceError(UsageError):
    """This machine has no such device."""


class UnknownNameError(UsageError):
    """There is no model, or no pair, of this name."""


class ModelError(SpecdemoError):
    """A model's folder or file cannot be used."""


class FolderError(ModelError):
    """The folder is missing, empty, incomplete, or contains no OpenVINO model."""


class GGUFError(ModelError):
    """The file is not a GGUF file, is incomplete, or uses something that OpenVINO GenAI cannot read."""


class PairError(ModelError):
    """Target and draft do not fit each other."""


class LoadError(ModelError):
    """OpenVINO refused to load the model."""


class FetchError(SpecdemoError):
    """A model could not be fetched."""


class AccessError(FetchError):
    """The model's licence is not accepted yet, or the Hub refused the token."""


class MissingError(FetchError):
    """The Hub has no such repository, revision or file."""


class NetworkError(FetchError):
    """The Hub could not be reached, or the connection was lost too often."""


class DiskError(FetchError):
    """The model does not fit on the disk."""


class ConversionError(FetchError):
    """The model could not be converted to OpenVINO, or the converter is not installed."""


class RunError(SpecdemoError):
    """A run that had started could not continue."""


class CacheError(RunError):
    """The KV cache is too small for this run, or larger than this machine's memory."""


class EngineError(RunError):
    """The engine failed; it is rebuilt before the next run."""

    def __init__(self, message: str = "The engine failed in this run and has been reset; run again.") -> None:
        super().__init__(message)


class ServerError(RunError):
    """A server did not answer, refused the request, or broke off its answer."""
