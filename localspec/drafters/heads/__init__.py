"""Trained heads, both halves side by side: what guesses, and the llama.cpp context it computes in."""
