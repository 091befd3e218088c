"""The version, in a leaf of its own: what is recorded with a figure must not import the package's interface."""

__version__ = "0.1.0"
