"""Benchmarks: ratios measured in one process, in interleaved rounds, kept as records with hardware and versions."""
