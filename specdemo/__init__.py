"""specdemo: watch plain and speculative decoding of the same model race on your own machine."""

__version__ = "0.1.0"
