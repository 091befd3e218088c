"""Load: how plain and speculative decoding compare with several requests in flight."""
