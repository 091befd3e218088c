"""Tables of text as HTML."""

from collections.abc import Iterable, Sequence

from markupsafe import Markup

_TABLE = Markup("<table><thead>{head}</thead><tbody>{rows}</tbody></table>")
_ROW = Markup("<tr>{}</tr>")
_HEAD = Markup("<th>{}</th>")
_CELL = Markup("<td>{}</td>")


def table_html(head: Sequence[str], rows: Iterable[Sequence[str]], *, titled: bool = False) -> Markup:
    """A table; `titled`: the first cell of each row is its title."""

    def row(cells: Sequence[str], titles: int) -> Markup:
        return _ROW.format(Markup("").join((_HEAD if at < titles else _CELL).format(c) for at, c in enumerate(cells)))

    body = Markup("").join(row(cells, int(titled)) for cells in rows)
    return _TABLE.format(head=row(head, len(head)), rows=body)
