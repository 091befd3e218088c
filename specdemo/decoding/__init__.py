"""The mathematics of decoding, without models: sampling, verification, lookahead. Any module may import it."""
