"""What records say: metrics, the speedup and its interval, sentences and charts. Everything but `decoding` may import
this; it runs no model.
"""
