"""The page. No other package imports Gradio."""
