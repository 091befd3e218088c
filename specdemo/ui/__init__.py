"""The page. Tabs, views and callbacks import gradio; the rest turns records into HTML and charts."""
