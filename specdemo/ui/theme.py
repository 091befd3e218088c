"""Gradio's widgets in the style sheet's colours, with fonts that every system has."""

import inspect

import gradio as gr

_COLOURS = {
    "body_background_fill": "bg",
    "body_text_color": "ink",
    "body_text_color_subdued": "mute",
    "background_fill_primary": "card",
    "background_fill_secondary": "bg",
    "border_color_primary": "line",
    "color_accent": "own",
    "color_accent_soft": "own-soft",
    "block_background_fill": "card",
    "block_border_color": "line",
    "block_info_text_color": "mute",
    "block_title_text_color": "ink",
    "block_label_text_color": "mute",
    "input_background_fill": "bg",
    "input_border_color": "line",
    "input_border_color_focus": "own",
    "slider_color": "own",
    "checkbox_background_color": "card",
    "checkbox_background_color_selected": "own",
    "checkbox_border_color": "mute",
    "checkbox_border_color_selected": "own",
    "checkbox_label_background_fill": "bg",
    "checkbox_label_background_fill_hover": "own-soft",
    "checkbox_label_background_fill_selected": "own-soft",
    "checkbox_label_border_color": "line",
    "checkbox_label_border_color_selected": "own",
    "checkbox_label_text_color": "ink",
    "checkbox_label_text_color_selected": "ink",
    "button_primary_background_fill": "own",
    "button_primary_background_fill_hover": "own",
    "button_primary_border_color": "own",
    "button_primary_text_color": "card",
    "button_secondary_background_fill": "card",
    "button_secondary_background_fill_hover": "bg",
    "button_secondary_border_color": "line",
    "button_secondary_text_color": "ink",
    "button_cancel_background_fill": "rejected",
    "button_cancel_background_fill_hover": "rejected",
    "button_cancel_border_color": "rejected",
    "button_cancel_text_color": "card",
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
    """The theme; one set of names serves light and dark, since the variables change with the mode."""
    base = gr.themes.Base(font=["system-ui", "Segoe UI", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    colours = {name: f"var(--sd-{colour})" for name, colour in _COLOURS.items()}
    known = inspect.signature(base.set).parameters
    dark = {f"{name}_dark": value for name, value in colours.items() if f"{name}_dark" in known}
    return base.set(**colours, **dark, **_SHAPES)
