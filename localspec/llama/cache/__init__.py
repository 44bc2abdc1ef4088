"""Contexts: cells, trees, states, and caches that are saved."""
