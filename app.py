"""Start the page on the bundled pair. A Hugging Face Space starts this file too."""

from specdemo.models.pairs import bundled_pair
from specdemo.ui.page import serve

if __name__ == "__main__":
    serve(bundled_pair())
