"""Who drafts, and how much: what pays on this machine for this text, down to not drafting at all."""
