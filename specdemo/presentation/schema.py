"""Comparisons as JSON objects of schema 2, and back.

The object holds the measurements and, for readers without this package, figures derived from them
(`tokens_per_second`, `summary`). Reading ignores the derived figures, since they follow from the rest.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from specdemo import metrics
from specdemo.errors import FileError
from specdemo.files import SCHEMA, json_value
from specdemo.records import SIDES, TICK, Comparison, Round, Run
from specdemo.summary import summarise

_COLUMNS = {
    "token_ids": "id",
    "token_texts": "text",
    "token_probabilities": "probability",
    "token_entropies": "entropy",
    "token_alternatives": "alternatives",
}
_REST = (
    "trace_source",
    "costs",
    "draft_agreement",
    "warm_up",
    "repeats",
    "other_load",
    "moves",
    "failures",
    "divergence",
    "counters",
)


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return a JSON-serialisable object of schema 2."""
    return {
        "schema": SCHEMA,
        **comparison.model_dump(mode="json", include={"pair", "history", "prompt", "settings", "environment"}),
        **{side: _run_to_json(comparison.side(side)) for side in SIDES},
        **comparison.model_dump(mode="json", include=set(_REST)),
        "summary": summarise(comparison).to_dict(),
    }


def from_json(data: dict[str, Any]) -> Comparison:
    """Read an object that `to_json` wrote.

    Raises:
        ValueError: the object has another schema.
    """
    if data.get("schema") != SCHEMA:
        raise ValueError(f"expected an object of schema {SCHEMA}, got schema {data.get('schema')!r}")
    return Comparison.model_validate({**data, **{side: _run_from_json(data[side]) for side in SIDES}})


def from_text(text: str | bytes, advice: str) -> Comparison:
    """Read a comparison from untrusted JSON.

    Raises:
        FileError: it is not a comparison; the message ends with `advice`.
    """
    try:
        return from_json(json_value(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:  # JSON of any other structure
        raise FileError(f"This is not a comparison of schema {SCHEMA}; {advice}.") from error


def _run_to_json(run: Run) -> dict[str, Any]:
    tokens = [token.model_dump(mode="json") for token in run.tokens]
    return {
        "text": run.text,
        **{column: [token[name] for token in tokens] for column, name in _COLUMNS.items()},
        "prefill_seconds": metrics.prefill_seconds(run),
        "decode_seconds": metrics.decode_seconds(run),
        "tokens_per_second": metrics.tokens_per_second(run),
        "finish_reason": run.finish_reason,
        "passes_known": run.passes_known,
        "rounds": [
            {**step.model_dump(mode="json"), "committed": [token.id for token in step.committed]}
            for step in run.rounds
        ],
    }


def _run_from_json(data: dict[str, Any]) -> dict[str, Any]:
    columns = {name: data[column] for column, name in _COLUMNS.items() if column in data}
    rows = zip(*columns.values(), strict=True)
    tokens: Iterator[dict[str, Any]] = (dict(zip(columns, row, strict=True)) for row in rows)
    in_rounds = sum(len(step["committed"]) for step in data["rounds"])
    prefill = {
        "committed": list(islice(tokens, len(data["token_ids"]) - in_rounds)),
        "seconds": TICK if data["prefill_seconds"] is None else data["prefill_seconds"],  # a run without tokens
    }
    rounds = [  # one by one, since a single call for a long run would stall a server's other threads
        Round.model_validate({**step, "committed": list(islice(tokens, len(step["committed"])))})
        for step in data["rounds"]
    ]
    rest = {"finish_reason": data["finish_reason"], "passes_known": data.get("passes_known", True)}
    return {"prefill": prefill, "rounds": rounds, **rest}
