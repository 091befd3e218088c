"""Metrics, the speedup and its interval, sentences and charts of records. Everything but `decoding` may import this;
it runs no model.
"""
