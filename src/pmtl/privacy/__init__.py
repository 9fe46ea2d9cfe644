"""Privacy plans, sampling, noise, accounting, the ledger, and the gate that publishes."""
