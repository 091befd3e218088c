"""The benchmark: suites of tasks, every decoding strategy, and the reports."""
