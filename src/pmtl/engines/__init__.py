"""Ways to train many clients at once."""
