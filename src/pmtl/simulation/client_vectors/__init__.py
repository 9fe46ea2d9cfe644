"""What the clients own between rounds: in memory, or in a file."""
