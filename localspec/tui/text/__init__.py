"""Text as the screen draws it, and what it is made of."""
