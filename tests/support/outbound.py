"""Loaded into the server under test as `sitecustomize`: records every other host that it tries to reach."""

import os
import socket
from typing import Any

_LOCAL = {"127.0.0.1", "localhost", "::1", "0.0.0.0", ""}
_connect, _resolve = socket.socket.connect, socket.getaddrinfo


def _note(host: Any) -> None:
    if str(host) not in _LOCAL:
        with open(os.environ["SPECDEMO_OUTBOUND_LOG"], "a") as log:  # noqa: PTH123
            log.write(f"{host}\n")


def connect(self: socket.socket, address: Any) -> None:
    if self.family in (socket.AF_INET, socket.AF_INET6):
        _note(address[0])
    _connect(self, address)


def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
    _note(host or "")
    return _resolve(host, *args, **kwargs)


socket.socket.connect = connect  # type: ignore[method-assign,assignment]
socket.getaddrinfo = getaddrinfo
