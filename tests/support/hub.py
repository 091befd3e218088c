"""A small Hugging Face Hub: folders served as repositories, by as much of its protocol as `huggingface_hub` speaks.

It can cut a connection, stall, send a wrong byte, or require a token. `served` counts the bytes sent, by file.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote

from tests.support.fake_server import Answer, Wait, fake

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 64 * 1024  # files from this size on are identified by their SHA-256, as in large-file storage
_API = re.compile(r"/api/models/(?P<repository>[^/]+/[^/]+)(?:/revision/[^/]+)?")
_RESOLVE = re.compile(r"/(?P<repository>[^/]+/[^/]+)/resolve/[^/]+/(?P<file>.+)")
_PIECE = 64 * 1024


@dataclass
class Hub:
    repositories: dict[str, Path]
    url: str = ""
    gated: set[str] = field(default_factory=set)
    token: str | None = None  # required for gated repositories
    cut_after: dict[str, int] = field(default_factory=dict)  # by file: bytes after which the connection is cut, once
    stall_after: dict[str, int] = field(default_factory=dict)  # by file: bytes after which it stalls
    damaged: set[str] = field(default_factory=set)  # files sent with a wrong last byte
    served: Counter[str] = field(default_factory=Counter)
    ranges: list[str] = field(default_factory=list)

    def answer(self, asked: BaseHTTPRequestHandler, wait: Wait) -> None:
        path = unquote(asked.path.partition("?")[0])
        if match := _API.fullmatch(path):
            self._describe(asked, **match.groupdict())
        elif match := _RESOLVE.fullmatch(path):
            self._send_file(asked, wait, **match.groupdict())
        else:
            _refuse(asked, 404, "EntryNotFound")

    def _describe(self, asked: BaseHTTPRequestHandler, repository: str) -> None:
        folder = self.repositories.get(repository)
        if folder is None:
            _refuse(asked, 401, "RepoNotFound")  # the Hub's answer without a token
        else:
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            siblings = [_sibling(path, path.relative_to(folder).as_posix()) for path in files]
            content = {"id": repository, "sha": COMMIT, "siblings": siblings, "gated": repository in self.gated}
            _send(asked, 200, json.dumps(content).encode())

    def _send_file(self, asked: BaseHTTPRequestHandler, wait: Wait, repository: str, file: str) -> None:
        folder = self.repositories.get(repository)
        if folder is None:
            return _refuse(asked, 401, "RepoNotFound")
        accepted = self.token is not None and asked.headers["Authorization"] == f"Bearer {self.token}"
        if repository in self.gated and not accepted:
            return _refuse(asked, 403, "GatedRepo")
        path = folder / file
        if not path.is_file():
            return _refuse(asked, 404, "EntryNotFound")
        content, first = path.read_bytes(), 0
        if requested := re.fullmatch(r"bytes=(\d+)-", asked.headers["Range"] or ""):
            first = int(requested[1])
            self.ranges.append(f"{file} from {first}")
        headers = {"ETag": f'"{_etag(path)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if requested:
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        _start(asked, 206 if requested else 200, headers | {"Content-Length": str(len(content) - first)})
        if asked.command == "GET":
            if file in self.damaged:
                content = content[:-1] + bytes([content[-1] ^ 1])
            end = min(self.cut_after.pop(file, len(content)), len(content))
            for start in range(first, end, _PIECE):
                if start >= self.stall_after.get(file, end):
                    wait(3600)
                piece = content[start : min(start + _PIECE, end)]
                asked.wfile.write(piece)
                self.served[file] += len(piece)
        return None


@contextmanager
def hub_of(repositories: dict[str, Path]) -> Iterator[Hub]:
    hub = Hub(repositories)
    with fake(lambda path, body: Answer(raw=hub.answer)) as server:
        hub.url = server.url
        yield hub


def _refuse(asked: BaseHTTPRequestHandler, status: int, code: str) -> None:
    _send(asked, status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})


def _send(asked: BaseHTTPRequestHandler, status: int, content: bytes, more: dict[str, str] | None = None) -> None:
    headers = {"Content-Type": "application/json", "Content-Length": str(len(content))}
    _start(asked, status, headers | (more or {}))
    if asked.command == "GET":
        asked.wfile.write(content)


def _start(asked: BaseHTTPRequestHandler, status: int, headers: dict[str, str]) -> None:
    asked.send_response(status)
    for name, value in (headers | {"Connection": "close"}).items():
        asked.send_header(name, value)
    asked.end_headers()


def _sibling(path: Path, name: str) -> dict[str, object]:
    size = path.stat().st_size
    entry: dict[str, object] = {"rfilename": name, "size": size, "blobId": _git_hash(path)}
    if size >= LARGE:
        entry["lfs"] = {"sha256": _etag(path), "size": size, "pointerSize": 130}
    return entry


def _etag(path: Path) -> str:
    if path.stat().st_size < LARGE:
        return _git_hash(path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _git_hash(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
