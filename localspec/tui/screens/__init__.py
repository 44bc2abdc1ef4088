"""Screens of the terminal chat, one a file, each with its `.tcss` beside it; `registry` lists them."""
