"""Benchmarks of RbFly, its peers and the floor, and proofs: `python -m perf --help`."""
