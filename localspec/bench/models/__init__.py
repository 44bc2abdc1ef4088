"""Models made for benchmarks."""
