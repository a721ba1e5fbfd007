"""`python -m perf.brokers`: the command `brokers` by itself."""

import sys

from .cli import main

sys.exit(main())
