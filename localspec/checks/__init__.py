"""Checks a user runs on their own machine; every face may call them."""
