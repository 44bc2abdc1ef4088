"""Checks of this machine, which every face may call."""

ASPECTS = ("threads", "kernels", "cache", "ngram", "length")
"""What `tune` tries, in this order; here, since a help text names them and must load nothing heavy."""
