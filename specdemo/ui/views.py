"""Views that our scripts draw from the value they receive."""

from typing import Any

import gradio as gr

from specdemo.resources import ASSETS

PAGE = ASSETS / "page"
SCRIPTS = (
    "plotly/plotly.min.js",
    "files.js",
    "share.js",
    "player.js",
    "pane.js",
    "chart.js",
    "race.js",
    "past.js",
    "anatomy.js",
    "board.js",
    "catalogue.js",
)


def view(template: str, script: str, value: str = "", **options: Any) -> gr.HTML:
    """A view; `script` makes the object that draws it, with `element` and `trigger` at hand."""
    head = "".join(f'<script src="specdemo/{name}"></script>' for name in SCRIPTS)
    mount = f"""
        const mount = () => {{
          const needed = [typeof Chart, typeof Past, typeof Race, typeof Anatomy, typeof Board, typeof Catalogue];
          if (needed.includes("undefined")) {{
            return setTimeout(mount, 30);
          }}
          const view = {script};
          watch("value", () => view.receive(props.value));
          view.receive(props.value);
        }};
        mount();
    """
    return gr.HTML(value, html_template=text(template), js_on_load=mount, head=head, **options)


def heading(title: str, explanation: str) -> gr.HTML:
    """The heading of a part of a tab."""
    return gr.HTML(f"<h2>{title}</h2><p>{explanation}</p>")


def text(name: str) -> str:
    """One of the page's files."""
    return (PAGE / name).read_text(encoding="utf-8")
