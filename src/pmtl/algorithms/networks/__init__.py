"""The default method for networks."""
