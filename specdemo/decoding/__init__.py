"""The mathematics of decoding, without models: sampling, verification, when to stop proposing. Anyone may import it."""
