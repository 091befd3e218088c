"""The page, which alone imports gradio."""
