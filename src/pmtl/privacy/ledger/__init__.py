"""The clients' ledger: what was released about whom."""
