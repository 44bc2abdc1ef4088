"""Models of this machine: the catalogue, the store, and who uses them."""
