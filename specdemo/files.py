"""Reading and writing files: assets, JSON from elsewhere, exports, and the cache.

Foreign JSON is parsed by pydantic: Python's own parser raises RecursionError on deep nesting, and accepts NaN
and lone surrogates, which cannot be written again.
"""

import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import platformdirs
from pydantic_core import from_json

from specdemo.errors import FileError, SpecdemoError, UsageError, quoted

try:
    Path.home()
except RuntimeError:  # neither HOME nor an entry in /etc/passwd, as in some containers
    os.environ["HOME"] = "/"  # as Docker sets it; libraries would make a folder named "~"


def json_value(text: str | bytes) -> Any:
    """A number too large for a float becomes infinite. ValueError: no JSON, nested too deeply, or invalid text."""
    return from_json(text, allow_inf_nan=False)


def read_bytes(path: Path, max_bytes: int, kind: str) -> bytes:
    """Read a file, or standard input (`-`), of at most `max_bytes`. A FileError omits the folder, which may be the
    server's.
    """
    piped = str(path) == "-"
    name = quoted("standard input" if piped else path.name or str(path))
    try:
        with nullcontext(sys.stdin.buffer) if piped else path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: not a possible file name
        raise FileError(f"Cannot read {name}; choose {kind}.") from error
    if len(data) > max_bytes:
        raise FileError(f"{name} is larger than {max_bytes // 2**20} MB; choose a smaller file.")
    return data


def is_text(value: Any) -> bool:
    """Check if a value is a string that can be encoded, without the lone surrogates that JSON allows."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


SCHEMA = 3  # version of all JSON objects for other programs


def json_text(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def write_json(content: Mapping[str, Any], path: str | Path, indent: int | None = 2) -> None:
    """Write an object with the schema version to a file, or to standard output for `-`."""
    if path == "-":
        print(json.dumps({"schema": SCHEMA, **content}, indent=indent))  # ASCII, which any terminal can display
    else:
        write_bytes(json_file(content, indent), Path(path))


def json_file(content: Mapping[str, Any], indent: int | None = 2) -> bytes:
    return (json_text({"schema": SCHEMA, **content}, indent) + "\n").encode()


def write_bytes(content: bytes, path: Path) -> None:
    """Write a file, replacing an existing one only when complete; raise a SpecdemoError if that fails."""
    try:
        path = path.resolve()  # a link stays one
        if path.exists() and not path.is_file():  # such as /dev/stdout
            path.write_bytes(content)
        else:
            _replace(path, content)
    except OSError as error:
        reason, name = error.strerror or str(error), quoted(str(path))
        raise SpecdemoError(f"Cannot write {name} ({reason}); choose another path.") from error


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".specdemo-{secrets.token_hex(4)}")  # short, since names have a longest length
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            temporary.chmod(path.stat().st_mode)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def check_files(json: str | None, *others: str | None) -> None:
    """Check before a run that its files can be written; only JSON can go to standard output, as `-`."""
    given = [path for path in (None if json == "-" else json, *others) if path is not None]
    for path in given:
        if path in ("", "-") or Path(path).is_dir() or not Path(path).parent.is_dir():
            raise UsageError(f"Cannot write a file at {quoted(path)}; choose another path.")
    files = [os.path.realpath(path) for path in given if not path.startswith("/dev/")]
    if len({*files}) < len(files):
        raise UsageError("Two results would be written to one file; choose another path for one of them.")


def write_files(files: Mapping[str | Path, Callable[[], bytes]]) -> None:
    """Make and write several files. If some fail, write the others, then raise a SpecdemoError that names all."""
    failures = list[SpecdemoError]()
    for path, make in files.items():
        try:
            write_bytes(make(), Path(path))
        except SpecdemoError as error:
            failures.append(error)
        except (OSError, MemoryError) as error:  # raised by make()
            failures.append(SpecdemoError.of(error, f"Cannot make {quoted(str(path))}", "leave it out"))
    if failures:
        causes = "\n".join(error.cause for error in failures)
        raise SpecdemoError(" ".join(map(str, failures))).because(causes) from failures[0]


@contextmanager
def environment(**variables: str | None) -> Iterator[None]:
    """Set environment variables, or hide those that are None, until the block ends."""
    before = {name: os.environ.pop(name) for name in variables if name in os.environ}
    os.environ.update({name: value for name, value in variables.items() if value is not None})
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)


def cache_folder() -> Path:
    return platformdirs.user_cache_path("specdemo", appauthor=False, opinion=False)


def expand_path(path: str) -> Path:
    expanded = Path(os.path.expandvars(path))
    with suppress(RuntimeError):  # an unknown user's home
        expanded = expanded.expanduser()
    return expanded


def list_folder(folder: Path) -> list[Path]:
    """Sorted; nothing if the folder cannot be read."""
    with suppress(OSError):
        return sorted(folder.iterdir())
    return []


def nearest_folder(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def writable_folder(folder: Path, what: str, advice: str = "set XDG_CACHE_HOME to a writable folder") -> Path:
    """Return the folder, created if necessary; raise a SpecdemoError that names `what` if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        problem = f"{what} cannot be saved in {quoted(str(folder))} ({error.strerror})"
        raise SpecdemoError(f"{problem}; {advice}.") from error


def is_writable(folder: Path) -> bool:
    with suppress(SpecdemoError):
        return writable_folder(folder, "Files") == folder
    return False


def link_or_copy(source: Path, link: Path) -> None:
    for make_link in (os.symlink, os.link):
        with suppress(OSError):
            make_link(source, link)
            return
    copy = shutil.copytree if source.is_dir() else shutil.copyfile
    copy(source, link)


_PACKAGE = Path(__file__).resolve().parent

# A wheel has `assets/` inside the package; a checkout has it next to the package.
ASSETS = next(folder for folder in (_PACKAGE / "assets", _PACKAGE.parent / "assets") if folder.is_dir())


@cache
def glossary() -> dict[str, dict[str, Any]]:
    """Every term's `meaning` and, where it has them, `formula`, `also` (other names), and its name `elsewhere`."""
    return dict(json.loads((ASSETS / "glossary.json").read_text(encoding="utf-8")))


@cache
def colours(*, dark: bool = False) -> dict[str, str]:
    """The page's colours by name, such as `ink`, from its style sheet."""
    sheet = (ASSETS / "page" / "tokens.css").read_text(encoding="utf-8")
    block = re.search(r"\.dark \{(.*?)\}" if dark else r":root \{(.*?)\}", sheet, re.DOTALL)
    assert block is not None, "the style sheet begins with its colours"
    return dict(re.findall(r"--sd-([\w-]+): (#\w+)", block[1]))
