"""Drafters that are models: they guess token by token."""
