"""The mathematics of decoding, without models: sampling, verification, when to stop proposing. Any module may import
it.
"""
