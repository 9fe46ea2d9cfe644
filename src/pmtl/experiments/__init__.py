"""Comparisons of algorithms, and the paper's figures and tables."""
