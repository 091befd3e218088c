"""A model file that is dropped on a page which only this machine reaches: a browser tells no path, so it is sent."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from anyio import open_file
from anyio.to_thread import run_sync
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from specdemo.errors import SpecdemoError, UsageError
from specdemo.models.library import keep_model
from specdemo.models.places import models_dir, writable

_FREE_BYTES = 2**30  # what must stay free


def drop_route(directory: Path | None) -> Route:
    """The address that takes such a file, written into the user's models directory if it is a model.

    It answers with the path that the file has there, or with a sentence that says why it is refused.
    """

    async def dropped(request: Request) -> Response:
        try:
            folder = await run_sync(writable, models_dir(directory), "Models")
            size = int(request.headers.get("content-length", "0"))
            if shutil.disk_usage(folder).free < size + _FREE_BYTES:
                raise UsageError(f"There is no room for this file in {folder}; free some, or give the file's path.")
            # hidden, so that nobody lists it before it is whole
            with TemporaryDirectory(prefix=".dropped-", dir=folder) as place:
                file = Path(place, request.path_params["name"])
                async with await open_file(file, "wb") as opened:
                    async for piece in request.stream():
                        await opened.write(piece)
                kept = await run_sync(keep_model, file, directory)
        except SpecdemoError as error:
            return _refused(str(error))
        except OSError as error:
            return _refused(f"The file cannot be written ({error.strerror}); give its path instead.")
        except ClientDisconnect:
            return _refused("The page was left.")
        return JSONResponse({"path": str(kept)})

    return Route("/model/{name}", dropped, methods=["PUT"])


def _refused(sentence: str) -> Response:
    """An answer like the other, since browsers report any other status as a fault of the page."""
    return JSONResponse({"refused": sentence})
