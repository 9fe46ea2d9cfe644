"""`pmtl ledger`: its commands, and what they print."""
