"""Conversations: messages in, the model's own prompt format out."""
