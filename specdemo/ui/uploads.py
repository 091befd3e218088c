"""Files that visitors upload: saved comparisons."""

from specdemo.analysis import schema
from specdemo.errors import FileError
from specdemo.input import json_value
from specdemo.measure.race import Lap
from specdemo.output import SCHEMA
from specdemo.ui.boards.anatomy import anatomy
from specdemo.ui.feed import Feed
from specdemo.ui.session import Update


def opened(data: bytes) -> Update:
    """What to show for the comparison in a JSON file, played as if it had just run.

    Raises:
        FileError: it is not such a file.
    """
    try:
        comparison = schema.from_json(json_value(data))
    except (ValueError, TypeError, KeyError, AttributeError) as error:  # whatever the JSON may be instead
        raise FileError(
            f"This file is not a comparison of schema {SCHEMA}; open one saved with Download JSON."
        ) from error
    feed = Feed(comparison.prompt, comparison.settings)
    for side in ("plain", "speculative"):
        run = comparison.side(side)
        source = comparison.trace_source if side == "speculative" else "measured"
        feed.add(Lap(side, (run.prefill, *run.rounds), run.finish_reason, source))
    feed.add(comparison)
    return Update(feed.everything, "", anatomy(comparison))
