"""What a benchmark comes to, for the first lines of its report: a conclusion, what to doubt, when and on what."""

from collections.abc import Iterator, Sequence

from specdemo.bench.results import ALL, Bench, Cell, cells
from specdemo.presentation.warnings import doubts_of
from specdemo.presentation.wording import common_words
from specdemo.records import Environment


def opening(result: Bench) -> Iterator[str]:
    """The first sentences: what was found, what to doubt about it, when, on which machine, with which settings."""
    found = cells(result)
    overall = [cell for cell in found if cell.task == ALL]
    yield conclusion(overall)
    for cell in found:
        for doubt in doubts_of(cell):
            if cell.task == ALL or doubt.kind == "above τ":
                yield f"{_name(cell)}, {cell.task}: {doubt.reason}"
    yield from where(result.date, [facts.environment for facts in result.engines.values()])
    header, prompts = result.header, len(result.tasks)
    yield (
        f"Settings: {common_words(header.settings)}; {prompts} prompt{'s' * (prompts != 1)}, "
        f"{result.repeats} repeat{'s' * (result.repeats != 1)}; methods: {', '.join(header.methods)}."
    )


def conclusion(overall: list[Cell]) -> str:
    """Which method decodes fastest compared with its engine's plain decoding, if any clearly does."""
    if not overall:
        return "Nothing could be measured."
    best = max(overall, key=lambda cell: cell.speedup.middle)
    evidence = f"{best.speedup}, the median of {best.runs} run{'s' * (best.runs != 1)}"
    outputs = "outputs identical" if best.identical else f"outputs identical in {best.identical_runs} of {best.runs}"
    if best.speedup.low is None:
        return f"Too few runs to be sure: the fastest so far is {_name(best)}, {evidence}, {outputs}."
    if best.speedup.low <= 1:
        return f"No method clearly beats plain decoding: the best, {_name(best)}, reached {evidence}, {outputs}."
    equals = [cell for cell in overall if cell is not best and (cell.speedup.high or 0) >= best.speedup.low]
    if not equals:
        return f"{_name(best)} gains most over plain decoding: {evidence}, {outputs}."
    names = ", ".join(_name(cell) for cell in [best, *sorted(equals, key=lambda cell: -cell.speedup.middle)])
    return f"No clear winner: any of {names}. For {_name(best)}: {evidence}, {outputs}."


def where(begun: str, environments: Sequence[Environment]) -> Iterator[str]:
    """When it was measured, and on what; the latter for at most one environment."""
    date = f"Measured on {begun}" if begun else "Measured"
    for environment in environments[:1]:
        threads = (
            "" if environment.threads is None else f", {environment.threads} thread{'s' * (environment.threads != 1)}"
        )
        version = "" if environment.served else f", with OpenVINO GenAI {environment.openvino_genai}"
        yield f"{date} on {environment.device}{threads}{version}."


def _name(cell: Cell) -> str:
    return f"{cell.engine} {cell.method}"
