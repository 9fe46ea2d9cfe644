"""The command line as people type it: completion, and mistakes in one sentence."""
