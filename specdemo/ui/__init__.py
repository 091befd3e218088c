"""The page: one module per tab. Only the command `serve` imports it, and no other package imports Gradio."""
