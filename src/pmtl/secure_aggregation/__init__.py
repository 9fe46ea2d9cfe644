"""Secure aggregation: the server learns the noisy sum of all sites, and nothing else of them."""
