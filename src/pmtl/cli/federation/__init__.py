"""`pmtl federation`: the same algorithms between organisations."""
