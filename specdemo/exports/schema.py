"""Comparisons as JSON objects of schema 3, and back; objects of schema 2 are read, too.

The object is the record itself. For readers without this package, each side also has its text, token ids and rates,
and `summary` has the page's figures and sentences. `from_json` ignores these.
"""

import zlib
from base64 import b64decode
from gzip import GzipFile
from io import BytesIO
from typing import Any

from specdemo.errors import FileError
from specdemo.files import SCHEMA, json_value
from specdemo.records import SIDES, Comparison, Round, Run
from specdemo.results import metrics
from specdemo.results.summary import summarise

_OLD_SETTINGS = "model_cache", "draft_precision", "cache_size"  # runtime settings of earlier files


def to_json(comparison: Comparison) -> dict[str, Any]:
    data = {"schema": SCHEMA, **comparison.model_dump(mode="json")}
    for side in SIDES:
        run = comparison.side(side)
        data[side] |= {
            "text": run.text,
            "token_ids": [token.id for token in run.tokens],
            "prefill_seconds": metrics.prefill_seconds(run),
            "decode_seconds": metrics.decode_seconds(run),
            "tokens_per_second": metrics.tokens_per_second(run),
        }
    return data | {"summary": summarise(comparison).to_dict()}


def from_json(data: dict[str, Any]) -> Comparison:
    """Raise ValueError if the object has another schema or contradicts itself."""
    runtime = {name: value for name, value in data["pair"].get("runtime", {}).items() if name not in _OLD_SETTINGS}
    data = {**data, "pair": {**data["pair"], "runtime": runtime}}
    if data.get("schema") == 2:
        data = _from_schema_2(data)
    elif data.get("schema") != SCHEMA:
        raise ValueError(f"expected an object of schema {SCHEMA}, got schema {data.get('schema')!r}")
    return Comparison.model_validate({**data, **{side: _run(data[side]) for side in SIDES}})


def _from_schema_2(data: dict[str, Any]) -> dict[str, Any]:
    """Rename what schema 2 called `verdict` and `moves`, whose values were fields."""
    updates = []
    for update in data.get("moves", ()):
        values = {name: value for name, value in update.items() if name != "round" and value is not None}
        updates.append({"round": update["round"], "values": values})
    sides = dict[str, Any]()
    for side in SIDES:
        rounds = [
            {**step, "proposed": proposed and [{**draft, "outcome": draft["verdict"]} for draft in proposed]}
            for step in (data[side]["prefill"], *data[side]["rounds"])
            for proposed in [step.get("proposed")]
        ]
        sides[side] = {**data[side], "prefill": rounds[0], "rounds": rounds[1:]}
    return {**data, **sides, "settings_updates": updates}


def _run(data: dict[str, Any]) -> Run:
    # Rounds are validated one by one: a single call for a long run would stall the server's other threads.
    prefill, *rounds = (Round.model_validate(item) for item in (data["prefill"], *data["rounds"]))
    for step in rounds:
        if step.contradicts_itself:
            raise ValueError("a round's proposals contradict what it committed")
    return Run.model_validate({**data, "prefill": prefill, "rounds": rounds})


def from_text(text: str | bytes, advice: str) -> Comparison:
    """Read untrusted JSON. FileError: it is no comparison, with `advice` on what to do."""
    try:
        return from_json(json_value(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:  # JSON of any other structure
        raise FileError(f"This is not a comparison of schema {SCHEMA}; {advice}.") from error


def unpack(packed: str, most: int) -> Comparison:
    """Read gzipped JSON in base64, as sent by the page. FileError: it is damaged or has more than `most` bytes."""
    advice = "run again and share that"
    try:
        with GzipFile(fileobj=BytesIO(b64decode(packed, validate=True))) as file:
            text = file.read(most + 1)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise FileError(f"This run arrived damaged; {advice}.") from error
    if len(text) > most:
        raise FileError(f"This run has more than {most:,} bytes; run with fewer tokens.")
    return from_text(text, advice)
