"""What runs a model: tokenizers, sequences with a KV cache, EAGLE-3 heads."""
