"""Loaded into the server under test as `sitecustomize`: records every other host that it tries to reach."""

import os
import sys
from typing import Any

_LOCAL = {"127.0.0.1", "localhost", "::1", "0.0.0.0", "", "None"}


def note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect" and isinstance(arguments[1], tuple):  # of a Unix socket, it is a path
        host = arguments[1][0]
    elif event == "socket.getaddrinfo":
        host = arguments[0]
    else:
        return
    if str(host) not in _LOCAL:
        with open(os.environ["SPECDEMO_OUTBOUND_LOG"], "a") as log:  # noqa: PTH123
            log.write(f"{host}\n")


sys.addaudithook(note)
