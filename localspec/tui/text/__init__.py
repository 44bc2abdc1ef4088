"""Text as the screen draws it."""
