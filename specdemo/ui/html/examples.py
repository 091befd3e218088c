"""The menu of example prompts, grouped by what to expect where that was measured for the pair."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from specdemo.files import ASSETS
from specdemo.models.pairs import bundled_prompts
from specdemo.records import ModelPair

_GROUPS = {"wins": "Speculation wins", "close": "Close", "loses": "Speculation loses"}
_EXPECTATIONS = ASSETS / "expectations.json"
_GROUP = Markup("<section><h3>{title}</h3>{entries}</section>")
_ENTRY = Markup('<button type="button" data-prompt="{prompt}">{prompt}{measured}</button>')
_WHERE = Markup("<p>Measured on {}; other machines differ.</p>")
_MEASURED = Markup(" <small>{:.2f}×</small>")


def examples_html(pair: ModelPair) -> str:
    """Prompts that suit the pair, each a button."""
    prompts, (measured, where) = bundled_prompts(pair.target.prompts), _measured(pair)
    if not all(prompt in measured for prompt in prompts):
        return str(_entries(prompts, {}))
    groups = {
        title: [prompt for prompt in prompts if measured[prompt]["expect"] == expected]
        for expected, title in _GROUPS.items()
    }
    return str(
        Markup("").join(
            _GROUP.format(title=title, entries=_entries(held, measured)) for title, held in groups.items() if held
        )
        + _WHERE.format(where)
    )


def _entries(prompts: Sequence[str], measured: Mapping[str, dict[str, Any]]) -> Markup:
    return Markup("").join(
        _ENTRY.format(prompt=prompt, measured=_MEASURED.format(measured[prompt]["speedup"]) if measured else "")
        for prompt in prompts
    )


def _measured(pair: ModelPair) -> tuple[dict[str, dict[str, Any]], str]:
    """What `tests/benchmarks` found for each prompt with this pair, if it was measured, and where."""
    if not _EXPECTATIONS.is_file() or pair.draft is None:
        return {}, ""
    found = json.loads(_EXPECTATIONS.read_text(encoding="utf-8")).get(f"{pair.target.name}|{pair.draft.name}", {})
    return {entry["prompt"]: entry for entry in found.get("prompts", [])}, found.get("measured_on", "")
