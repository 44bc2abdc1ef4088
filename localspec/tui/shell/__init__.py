"""The app around the screens: keys, commands, themes, tabs."""
