"""The mathematics of decoding, without a model: sampling, verification, and when to stop proposing."""
