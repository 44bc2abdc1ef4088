"""Widgets of the terminal chat, one a file."""
