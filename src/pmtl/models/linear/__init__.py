"""Linear models: their exact solutions, the candidates among them, and numeric targets."""
