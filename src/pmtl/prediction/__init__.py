"""Predictions of a finished run: for its clients and new ones, for single rows and whole files."""
