"""The app around the screens: the way between them, the clipboard, the terminal, warnings."""
