"""A benchmark as a board: charts, the table, and facts about the machine."""

from markupsafe import Markup

from specdemo.bench import report
from specdemo.bench.charts import charts
from specdemo.bench.conclusion import opening
from specdemo.bench.results import Bench
from specdemo.ui.boards.sweep import board
from specdemo.ui.html.tables import table_html


def bench_board(result: Bench) -> str:
    """What a benchmark has found so far; an empty board before its first result."""
    if not result.rows:
        return board({}, {})
    lines = [note for note in report.notes(result) if note]
    begin = Markup("").join(Markup("<p>{}</p>").format(sentence) for sentence in opening(result))
    html = {
        "opening": str(begin),
        "table": str(table_html(report.COLUMNS, report.table(result))),
        "notes": str(Markup("").join(Markup("<p>{}</p>").format(line) for line in lines)),
    }
    shown = charts(result)
    return board(html, {place: shown[place].figure for place in ("speedup", "length")})
