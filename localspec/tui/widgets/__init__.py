"""Widgets of the terminal chat, one a file; `bindings` and `registry` say what keys and commands there are."""
