"""What can be shared of a run, by kind, for the page and the terminal."""

import gzip
import zlib
from base64 import b64decode
from collections.abc import Callable
from io import BytesIO
from typing import NamedTuple

from specdemo.errors import FileError
from specdemo.presentation import schema
from specdemo.records import Comparison
from specdemo.ui.share.picture import moving_picture, verdict_picture
from specdemo.ui.share.replay import replay


class Kind(NamedTuple):
    """A kind of file: what it is, its type, and what makes it."""

    what: str
    media_type: str
    make: Callable[[Comparison], bytes]


KINDS = {
    "html": Kind("one HTML file that replays the race offline", "text/html", replay),
    "gif": Kind("the race as a moving picture", "image/gif", moving_picture),
    "png": Kind("a picture of the verdict", "image/png", verdict_picture),
}


def unpacked(packed: str, most: int) -> Comparison:
    """The comparison in base64 of compressed JSON of at most `most` bytes, as the page sends it.

    Raises:
        FileError: it holds none, or more.
    """
    advice = "run again and share that"
    try:
        with gzip.open(BytesIO(b64decode(packed, validate=True))) as file:
            text = file.read(most + 1)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise FileError(f"This run was not sent as it should be; {advice}.") from error
    if len(text) > most:
        raise FileError(f"This run has more than {most:,} bytes; run with fewer tokens.")
    return schema.from_text(text, advice)
