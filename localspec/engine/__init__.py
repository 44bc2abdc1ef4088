"""Speculative decoding against Protocols: knows tokens, logits rows and drafts, and no model library."""
