"""Training runs: loop, evaluation, records."""
