"""Drafters that search text: no weights, no passes of their own."""
