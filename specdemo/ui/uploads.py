"""Files that visitors upload: saved comparisons."""

from specdemo.presentation import schema
from specdemo.ui.boards.anatomy import anatomy
from specdemo.ui.feed import recorded
from specdemo.ui.session import Update


def opened(data: bytes) -> Update:
    """What to show for the comparison in a JSON file, played as if it had just run.

    Raises:
        FileError: it is not such a file.
    """
    comparison = schema.from_text(data, "open one saved with Share")
    return Update(recorded(comparison).everything, "", anatomy(comparison))
