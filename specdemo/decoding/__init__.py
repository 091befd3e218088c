"""The mathematics of decoding, independent of models: sampling, verification, and when to stop proposing."""
