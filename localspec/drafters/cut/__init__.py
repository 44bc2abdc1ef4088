"""A draft model that is cut from its target: some of its layers, a part of its vocabulary, written as a GGUF file."""
