"""Checks a user runs on their own machine; every face may call them."""

ASPECTS = ("threads", "kernels", "cache", "ngram", "length")
"""What `tune` tries, in this order; here, since a help text names them and must load nothing heavy."""
