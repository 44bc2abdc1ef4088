"""Memory: what models take, and what there is."""
