"""Networks inside clients: their rows, training around a centre, and the candidates for it."""
