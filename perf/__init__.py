"""Benchmarks of RbFly, its peers and the floor: `python -m perf --help`."""
