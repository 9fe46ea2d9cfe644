"""Attacks on the training code, which test whether ε is larger than claimed."""
