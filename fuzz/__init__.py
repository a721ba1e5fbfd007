"""Targets for coverage-guided fuzzing; see `python fuzz/run.py --help`."""
