"""`python -m specdemo`, and the command `specdemo`."""

import signal
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run the command that the arguments name, those of this program unless given; return the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl+C ends it without a word until a command has begun
    from specdemo.cli import main as run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
