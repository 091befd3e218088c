"""`serve`: the page."""

import argparse
import os
import re

from specdemo.cli.options import Commands, add_pair, chosen_pair, integer
from specdemo.cli.signals import importing
from specdemo.errors import UsageError, quoted


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("serve", help="start the page")
    parser.set_defaults(command=_serve)
    parser.add_argument(
        "--host", metavar="ADDRESS", help="address to listen on (default: $GRADIO_SERVER_NAME, or 127.0.0.1)"
    )
    parser.add_argument(
        "--port",
        type=integer(1, 65535),
        metavar="PORT",
        help="port to listen on (default: $GRADIO_SERVER_PORT, or the first free from 7860 on)",
    )
    parser.add_argument("--auth", metavar="USER:PASSWORD", help="require this name and password from visitors")
    parser.add_argument(
        "--downloads",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="let visitors download models (default: yes, but not on a Hugging Face Space)",
    )
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        type=host_name,
        metavar="NAME",
        help="host name in the page's address, such as a reverse proxy's, or *.DOMAIN; repeat for several "
        "(default: localhost if only this machine can reach the page, else any)",
    )
    add_pair(parser)


def host_name(text: str) -> str:
    if not re.fullmatch(r"(\*\.)?[\w.-]+|\[[0-9a-fA-F:.]+\]", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a host name; give it without scheme and port")
    return text


def _serve(options: argparse.Namespace) -> None:
    port = os.environ.get("GRADIO_SERVER_PORT", "7860")  # gradio reads it when it is imported
    if not re.fullmatch("[0-9]{1,4}|[1-5][0-9]{4}", port):
        raise UsageError(f"GRADIO_SERVER_PORT is {quoted(port)}; give a number below 60000.")
    with importing():
        from specdemo.ui.page import serve  # gradio takes seconds to import

    user, colon, password = (options.auth or "").partition(":")
    if options.auth is not None and not (user and colon and password):
        raise UsageError("--auth takes USER:PASSWORD, neither of them empty.")
    serve(
        chosen_pair(options),
        host=options.host,
        port=options.port,
        auth=(user, password) if user else None,
        models_dir=options.models_dir,
        downloads=options.downloads,
        allowed_hosts=options.allowed_host,
        load=options.load_engine,
    )
