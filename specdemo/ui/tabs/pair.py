"""The controls of the Models tab that name a pair."""

import gradio as gr

from specdemo.models.devices import devices
from specdemo.ui.callbacks.models import Choices
from specdemo.ui.controls import RUNTIME, Control, control
from specdemo.ui.registry import PAIR_NAMES, Registry, values_of

_BY_KEYBOARD = ("cache_size", "inference_num_threads")
_SAME = "Same as the target"
_WHENCE = (
    "Lists every model of your models folder, the Hugging Face cache, LM Studio, llama.cpp and Ollama; "
    "<code>specdemo models list</code> prints where the first two are."
)
_TYPED_ID = (
    "For any other, type its Hugging Face id, such as <code>OpenVINO/Qwen3-8B-int4-ov</code>, or "
    "<code>ORGANISATION/MODEL:FILE.gguf</code>."
)


def pair_controls(registry: Registry, targets: Choices, drafts: Choices) -> list[Control]:
    """The controls, in the order of `PAIR_NAMES`, with these choices; they name the default pair."""
    values = values_of(registry.default)
    usable = [(f"{name}: {title}", name) for name, title in registry.devices().items()]
    choices = {"target": targets, "draft": drafts, "device": usable, "draft_device": [(_SAME, ""), *usable]}
    titles = {"target": ("Target", "writes the text"), "draft": ("Draft", "guesses ahead")}
    made: dict[str, Control] = {}

    def add(name: str) -> None:
        if name in choices:
            title, info = titles.get(name) or (RUNTIME[name].title, RUNTIME[name].description)
            made[name] = gr.Dropdown(
                choices[name],
                value=values[name],
                label=title,
                info=info,
                # models differ between visitors, and the shelf looks them up in any case
                allow_custom_value=name in titles,
                filterable=name in titles,
                elem_id=name,
            )
        else:
            made[name] = control(name, typed=name in _BY_KEYBOARD, value=values[name], min_width=200)

    with gr.Row(elem_classes="controls"):
        for name in choices:
            add(name)
    gr.HTML(f"<p>{_WHENCE} {_TYPED_ID if registry.downloads else ''}</p>", elem_id="whence")
    for device in devices():
        if device.reason is not None:
            gr.Markdown(f"**{device.name}** ({device.full_name}) cannot be used: {device.reason}.")
    with gr.Accordion("Runtime", open=False, elem_id="runtime"), gr.Row(elem_classes="controls"):
        for name in RUNTIME:
            if name not in made:
                add(name)
    return [made[name] for name in PAIR_NAMES]
