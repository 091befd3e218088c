"""Gradio's style sheets in a layer of the cascade, so that the page's own rules come after them.

Without it, whatever Gradio writes for all buttons or headings wins over any layer of ours, and only longer selectors
and `!important` win over Gradio. `assets/page/tokens.css` names the order of all layers.
"""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_BEGIN, _END = b"@layer gradio {", b"}"
_OWN = "/specdemo/"


class Layered:
    """Middleware that puts each of Gradio's style sheets into the layer `gradio`."""

    def __init__(self, app: ASGIApp) -> None:
        """Middleware before this application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        path = str(scope.get("path", ""))
        if scope["type"] != "http" or not path.endswith(".css") or _OWN in path:
            await self._app(scope, receive, send)
            return
        opened = whole = False

        async def wrapping(message: Message) -> None:
            nonlocal opened, whole
            if message["type"] == "http.response.start":
                whole = message["status"] == 200
                if whole:
                    headers = MutableHeaders(scope=message)
                    if "content-length" in headers:
                        headers["content-length"] = str(int(headers["content-length"]) + len(_BEGIN + _END))
            elif message["type"] == "http.response.body" and whole and scope["method"] == "GET":
                begin, end = b"" if opened else _BEGIN, b"" if message.get("more_body") else _END
                message = {**message, "body": begin + message.get("body", b"") + end}
                opened = True
            await send(message)

        await self._app(scope, receive, wrapping)
