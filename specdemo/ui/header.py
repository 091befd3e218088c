"""What every tab has above it: name, question, and which pair is in use where."""

from markupsafe import Markup

from specdemo.models.devices import draft_device
from specdemo.records import Model, ModelPair

_HEADER = Markup(
    "<header><h1>specdemo</h1>"
    "<p>Does speculative decoding help this model, on this machine, for this prompt?</p>"
    "<span>{}</span></header>"
)


def header_html(pair: ModelPair) -> str:
    """Name, question, and what is used where."""
    runtime = pair.runtime
    target = f"target {_model(pair.target)} on {runtime.device}"
    draft = f"draft {_model(pair.draft)} on {draft_device(runtime)}" if pair.draft else "no draft"
    return str(_HEADER.format(f"{pair.name} · {target} · {draft} · {_precision(runtime.precision)}"))


def _precision(asked: str) -> str:
    """As asked: what a device makes of it is told with every run."""
    return "default precision" if asked == "default" else f"asked for {asked}"


def _model(model: Model) -> str:
    return f"{size(model.parameters)} {model.weights}"


def size(parameters: int) -> str:
    """A number of parameters for people: 1.1M, 7B."""
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.1f}M"
