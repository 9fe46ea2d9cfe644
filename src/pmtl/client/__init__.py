"""One client: which rows it trains on, and its local steps."""
