"""Grids of settings, their results as a table, and a private choice between them."""
