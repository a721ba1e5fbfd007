"""Coverage-guided fuzz targets; `python fuzz/run.py --help` tells how they are run."""
