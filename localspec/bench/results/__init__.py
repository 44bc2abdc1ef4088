"""Figures, tables, pictures and pages of a benchmark."""
