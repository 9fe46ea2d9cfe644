"""Completion of what is typed, and error messages about mistakes in it."""
