"""Contenders answer prompts in turn."""
