"""Asking and answering: who answers, and what becomes of a turn."""
