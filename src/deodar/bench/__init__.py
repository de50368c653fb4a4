"""Measure: benchmarks as commands that print their conditions with their numbers."""
