"""The page: one module per tab. Only `app.py` and the command `serve` import it, and no other package Gradio."""
