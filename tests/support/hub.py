"""A small Hugging Face Hub: folders served as repositories, by as much of its protocol as `huggingface_hub` speaks.

It can cut a connection, stall, send a wrong byte, or require a token. `served` counts the bytes sent, by file.
"""

import hashlib
import json
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 64 * 1024  # files from this size on are identified by their SHA-256, as in large-file storage
_API = re.compile(r"/api/models/(?P<repository>[^/]+/[^/]+)(?:/revision/(?P<revision>[^/]+))?")
_RESOLVE = re.compile(r"/(?P<repository>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
_PIECE = 64 * 1024


class Hub:
    def __init__(self, repositories: dict[str, Path]) -> None:
        self.repositories = repositories
        self.gated: set[str] = set()
        self.cut_after: dict[str, int] = {}  # by file: bytes after which the connection is cut, once
        self.stall_after: dict[str, int] = {}  # by file: bytes after which it stalls until the server ends
        self.damaged: set[str] = set()  # files sent with a wrong last byte
        self.token: str | None = None  # required for gated repositories
        self.served: Counter[str] = Counter()
        self.ranges: list[str] = []
        self.ended = threading.Event()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])
        if match := _API.fullmatch(path):
            self._describe(**match.groupdict())
        elif match := _RESOLVE.fullmatch(path):
            self._send_file(**match.groupdict())
        else:
            self._refuse(404, "EntryNotFound")

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *arguments: object) -> None:
        pass

    def _describe(self, repository: str, revision: str | None) -> None:
        folder = self.hub.repositories.get(repository)
        if folder is None:
            self._refuse(401, "RepoNotFound")  # the Hub's answer without a token
        elif revision not in (None, "main", COMMIT):
            self._refuse(404, "RevisionNotFound")
        else:
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            siblings = [_sibling(path, path.relative_to(folder).as_posix()) for path in files]
            content = {"id": repository, "sha": COMMIT, "siblings": siblings, "gated": repository in self.hub.gated}
            self._send(200, json.dumps(content).encode())

    def _send_file(self, repository: str, revision: str, file: str) -> None:
        folder = self.hub.repositories.get(repository)
        if folder is None:
            return self._refuse(401, "RepoNotFound")
        accepted = self.hub.token is not None and self.headers["Authorization"] == f"Bearer {self.hub.token}"
        if repository in self.hub.gated and not accepted:
            return self._refuse(403, "GatedRepo")
        path = folder / file
        if not path.is_file():
            return self._refuse(404, "EntryNotFound")
        content, first = path.read_bytes(), 0
        if requested := re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or ""):
            first = int(requested[1])
            self.hub.ranges.append(f"{file} from {first}")
        headers = {"ETag": f'"{_etag(path)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if requested:
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        self._start(206 if requested else 200, headers | {"Content-Length": str(len(content) - first)})
        if self.command == "GET":
            if file in self.hub.damaged:
                content = content[:-1] + bytes([content[-1] ^ 1])
            self._send_pieces(file, content, first)
        return None

    def _send_pieces(self, file: str, content: bytes, first: int) -> None:
        end = min(self.hub.cut_after.pop(file, len(content)), len(content))
        try:
            for start in range(first, end, _PIECE):
                if start >= self.hub.stall_after.get(file, end):
                    self.hub.ended.wait()
                piece = content[start : min(start + _PIECE, end)]
                self.wfile.write(piece)
                self.hub.served[file] += len(piece)
        except (BrokenPipeError, ConnectionResetError):
            end = 0  # the client left
        self.close_connection = end < len(content)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self._start(
            status, {"Content-Type": "application/json", "Content-Length": str(len(content))} | (headers or {})
        )
        if self.command == "GET":
            self.wfile.write(content)

    def _start(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


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
