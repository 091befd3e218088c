"""Files that visitors upload: saved comparisons."""

from specdemo.analysis import schema
from specdemo.errors import FileError
from specdemo.input import json_value
from specdemo.output import SCHEMA
from specdemo.ui.boards.anatomy import anatomy
from specdemo.ui.feed import recorded
from specdemo.ui.session import Update


def opened(data: bytes) -> Update:
    """What to show for the comparison in a JSON file, played as if it had just run.

    Raises:
        FileError: it is not such a file.
    """
    try:
        comparison = schema.from_json(json_value(data))
    except (ValueError, TypeError, KeyError, AttributeError) as error:  # whatever the JSON may be instead
        raise FileError(f"This file is not a comparison of schema {SCHEMA}; open one saved with Share.") from error
    return Update(recorded(comparison).everything, "", anatomy(comparison))
