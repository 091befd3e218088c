"""The benchmark: suites of tasks, every way of decoding, and the reports."""
