"""The page's look: Gradio's theme, our style sheets, and the views that our modules draw. Nothing is global in the
browser: scripts import the modules they need, relative to the page's address.
"""

import inspect
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specdemo.exports.html import PAGE, STYLES, page_file, terms
from specdemo.results import figures

# Variables of Gradio's theme, by the colour of `tokens.css` that they take.
_COLOURS = {
    "bg": "body_background_fill background_fill_secondary input_background_fill checkbox_label_background_fill "
    "button_secondary_background_fill_hover",
    "card": "background_fill_primary block_background_fill checkbox_background_color button_primary_text_color "
    "button_secondary_background_fill button_cancel_text_color",
    "ink": "body_text_color block_title_text_color checkbox_label_text_color checkbox_label_text_color_selected "
    "button_secondary_text_color",
    "mute": "body_text_color_subdued block_info_text_color block_label_text_color checkbox_border_color",
    "line": "border_color_primary block_border_color input_border_color checkbox_label_border_color "
    "button_secondary_border_color",
    "target": "color_accent input_border_color_focus slider_color checkbox_background_color_selected "
    "checkbox_border_color_selected checkbox_label_border_color_selected button_primary_background_fill "
    "button_primary_background_fill_hover button_primary_border_color",
    "target-soft": "color_accent_soft checkbox_label_background_fill_hover checkbox_label_background_fill_selected",
    "rejected": "button_cancel_background_fill button_cancel_background_fill_hover button_cancel_border_color",
}
_SHAPES = {
    "block_radius": "12px",
    "block_border_width": "1px",
    "block_shadow": "none",
    "button_border_width": "1px",
    "button_large_radius": "10px",
    "button_large_text_size": "15px",
    "checkbox_label_border_width": "1px",
    "checkbox_label_padding": "5px 10px",
    "checkbox_label_text_size": "13px",
    "input_border_width": "1px",
    "input_radius": "8px",
    "block_info_text_size": "12px",
    "block_title_text_size": "13px",
    "block_title_text_weight": "600",
}


def theme() -> gr.themes.Base:
    """One set of names serves light and dark, since the variables change with the mode."""
    base = gr.themes.Base(font=["system-ui", "Segoe UI", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    colours = {name: f"var(--sd-{colour})" for colour, names in _COLOURS.items() for name in names.split()}
    variables = inspect.signature(base.set).parameters
    dark = {f"{name}_dark": value for name, value in colours.items() if f"{name}_dark" in variables}
    return base.set(**colours, **dark, **_SHAPES)


BOARD = '<div class="board race"></div>'  # the markup of a view of that name
_MODULE = 'import(new URL("specdemo/{}", document.baseURI))'


def view(name: str, markup: str | None = None, *, value: str = "", **layout: Any) -> gr.HTML:
    """Mount a view of `main.js` on `markup`, or on the HTML file of its name."""
    mount = f"""
        const widget = {{ element, trigger, props, watch }};
        {_MODULE.format("main.js")}.then(({{ mount }}) => mount("{name}", widget));
    """
    return gr.HTML(value, html_template=markup or page_file(f"{name}.html"), js_on_load=mount, **layout)


def channel() -> gr.Textbox:
    """Carry a text between an event and a script, which gets only components' values from Gradio. A property of a
    `gr.HTML` would stay in the visitor's session on the server, with a shared picture of megabytes.
    """
    return gr.Textbox(visible=False)


def script(module: str, function: str, *first: str) -> str:
    """Return JavaScript that calls a module's function with `first`, as JSON, and the event's values."""
    arguments = "".join(f"{value}, " for value in first)
    return f"async (...values) => (await {_MODULE.format(module)}).{function}({arguments}...values)"


_MODULES = {path.name for path in PAGE.glob("*.js")} - {"replay.js"}


def head() -> str:
    sheets = "".join(
        f'<link rel="stylesheet" href="specdemo/{name}">' for name in (*STYLES, "boards.css", "gradio.css")
    )
    preloads = "".join(f'<link rel="modulepreload" href="specdemo/{name}">' for name in sorted(_MODULES))
    glossary = f'<script id="terms" type="application/json">{terms()}</script>'
    return f'{sheets}{glossary}<script type="module" src="specdemo/gradio.js"></script>{preloads}'


def charts(_: Request) -> Response:
    return JSONResponse(figures.page_charts(), headers={"Cache-Control": "no-cache"})


def plotly(_: Request) -> Response:
    """The address names the version, so a browser may keep it for ever. Every browser reads gzip."""
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Content-Encoding": "gzip"}
    return Response(figures.plotly_js(), media_type="text/javascript", headers=headers)
