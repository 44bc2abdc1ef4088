"""Memory while models are loaded: what is free, which layers go where, and a GPU that is lost."""
