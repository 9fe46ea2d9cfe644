"""What a client does for itself when the run is over: fine-tuning, and choosing between models."""
