"""`python -m brokers`."""

import sys

from .cli import main
from .output import run

sys.exit(run(main))
