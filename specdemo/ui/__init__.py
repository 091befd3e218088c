"""The page. No other package imports Gradio."""

from specdemo.ui.page import serve as serve
