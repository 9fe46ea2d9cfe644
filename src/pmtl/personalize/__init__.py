"""What a client does alone after a run: fine-tuning, and choosing between models."""
