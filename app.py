"""Start the page on the default pair. A Hugging Face Space starts this file too."""

if __name__ == "__main__":  # the engine's process imports this file again and needs no page
    from specdemo.models.pairs import default_pair
    from specdemo.ui.page import serve

    serve(default_pair())
