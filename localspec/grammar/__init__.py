"""Grammars: llguidance behind one door, and what forces an answer into a form."""
