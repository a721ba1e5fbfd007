"""A port that refuses connections."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def closed_port() -> Iterator[int]:
    """A port of loopback where nothing listens, and that nothing else gets meanwhile."""
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        yield taken.getsockname()[1]
