"""Training methods, one a file, all written in the three hooks of base.py."""
