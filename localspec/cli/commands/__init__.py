"""The commands, one a file; some have a second file for a way of their own."""
