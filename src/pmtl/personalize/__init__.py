"""After a run, each client by itself: fine-tuning, and choosing between models."""
