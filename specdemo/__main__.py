"""Entry point of `python -m specdemo` and of the command `specdemo`."""

import signal
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run a command, by default from the program's own arguments; return the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl+C ends the program silently until a command has started
    from specdemo.cli import main as run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
