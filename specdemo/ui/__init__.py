"""The page. Only `page` and `controls` import gradio; the rest turns records into what the page shows."""
