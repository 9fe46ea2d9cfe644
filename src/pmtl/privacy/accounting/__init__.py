"""What releases cost: ε, δ and Rényi divergences."""
