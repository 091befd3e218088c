"""Views that our modules draw from the value they receive, and how Gradio's events call those modules.

Nothing is global in the browser: whoever needs a module imports it, by an address relative to the page's.
"""

from typing import Any

import gradio as gr

from specdemo.presentation.scripts import STYLES, modules, text_of

_MODULE = 'import(new URL("specdemo/{}", document.baseURI))'


def view(
    name: str,
    template: str | None = None,
    *,
    markup: str | None = None,
    value: str = "",
    options: str = "null",
    **layout: Any,
) -> gr.HTML:
    """A view of `main.js` by its name, whose markup is given or in `template`; `options` is JSON for it."""
    mount = f"""
        const widget = {{ element, trigger, props, watch }};
        {_MODULE.format("main.js")}.then(({{ mount }}) => mount("{name}", widget, {options}));
    """
    return gr.HTML(value, html_template=markup or text_of(template or f"{name}.html"), js_on_load=mount, **layout)


def script(module: str, function: str, *first: str) -> str:
    """A function of a module for an event of Gradio's, called with `first`, as JSON, and the event's values."""
    arguments = "".join(f"{value}, " for value in first)
    return f"async (...values) => (await {_MODULE.format(module)}).{function}({arguments}...values)"


def head() -> str:
    """What the page's head loads: what must hold from the first moment on, and all modules in advance."""
    sheets = "".join(f'<link rel="stylesheet" href="specdemo/{name}">' for name in (*STYLES, "gradio.css"))
    loaded = "".join(f'<link rel="modulepreload" href="specdemo/{name}">' for name in modules("main.js"))
    return f'{sheets}<script type="module" src="specdemo/start.js"></script>{loaded}'


def heading(title: str, explanation: str) -> gr.HTML:
    """The heading of a part of a tab."""
    return gr.HTML(f"<h2>{title}</h2><p>{explanation}</p>")
