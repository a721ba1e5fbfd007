"""`python -m proofs`."""

import sys

from brokers.output import run

from .cli import main

sys.exit(run(main))
