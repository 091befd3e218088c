"""Package version, in a module of its own: recording it with a figure must not import the package's interface."""

__version__ = "0.1.0"
