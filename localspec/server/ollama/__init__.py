"""Ollama's API, and a page about the server."""
