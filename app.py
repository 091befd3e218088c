"""Start the page, as `specdemo serve` does. A Hugging Face Space starts this file."""

if __name__ == "__main__":  # the engine's process imports this file again and needs no page
    import sys

    from specdemo.__main__ import main

    sys.exit(main(["serve", *sys.argv[1:]]))
