"""The header above every tab: name, and which pair is in use on which device."""

from markupsafe import Markup

from specdemo.models.devices import draft_device
from specdemo.presentation.figures import parameters
from specdemo.records import Model, ModelPair
from specdemo.strategies import SERVERS

_HEADER = Markup('<header><h1>specdemo</h1><span title="{0}">{0}</span></header>')


def header_html(pair: ModelPair) -> str:
    """Name, and what runs where."""
    if pair.target.server is not None:
        return str(_HEADER.format(f"{pair.name} · served by {SERVERS[pair.target.server]}"))
    runtime = pair.runtime
    target = f"target {_model(pair.target)} on {runtime.device}"
    draft = f"draft {_model(pair.draft)} on {draft_device(runtime)}" if pair.draft else "no draft"
    return str(_HEADER.format(f"{pair.name} · {target} · {draft} · {_precision(runtime.precision)}"))


def _precision(asked: str) -> str:
    """As requested; what the device actually uses is reported with every run."""
    return "default precision" if asked == "default" else f"precision {asked}"


def _model(model: Model) -> str:
    return f"{parameters(model.parameters)} {model.weights}"
