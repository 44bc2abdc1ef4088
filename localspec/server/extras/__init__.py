"""Models, embeddings, tokens and slots."""
