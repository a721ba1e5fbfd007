"""Benchmarks of RbFly beside its peers and beside the floor: `python -m perf --help`."""
