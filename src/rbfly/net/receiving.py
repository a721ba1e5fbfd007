"""Lets the kernel collect the bytes of a long frame before it wakes the event loop."""

from __future__ import annotations

import os
import re
import socket
import sys
from asyncio import BaseTransport
from collections.abc import Callable
from contextlib import suppress

from ..protocol._engine import LEAST_WAIT

OLDEST_LINUX = (5, 12)  # before, the kernel may wait for more bytes than it has memory for
SHARE = 32  # the loop waits for this part of the receive buffer at most, see `collect_in`


def collect_in(transport: BaseTransport) -> Callable[[int], None] | None:
    """Return a function that sets for how many bytes the event loop waits.

    The end of the connection wakes the loop even if fewer have arrived.  The loop never waits for
    most of a receive buffer: the kernel enlarges the buffer, and with it the window of a distant
    broker, while the program reads soon after bytes arrive.

    :returns: None if the loop is to wake for any byte.  With TLS, some of the bytes may have
        arrived in an incomplete record.
    """
    found = transport.get_extra_info('socket')
    if not is_supported() or transport.get_extra_info('sslcontext') is not None:
        return None
    if getattr(found, 'family', None) not in (socket.AF_INET, socket.AF_INET6):
        return None
    if not hasattr(found, 'getsockopt'):  # that of another event loop
        return None

    def wait_for(count: int) -> None:
        with suppress(OSError, ValueError):  # asyncio, or uvloop, has closed the socket
            if count > 1:
                size = found.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
                count = min(count, size // SHARE)
            if count < LEAST_WAIT:
                count = 1
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    return wait_for


def is_supported(system: str = sys.platform, release: str = '') -> bool:
    """True if the kernel wakes the event loop when its receive buffer is full."""
    if system != 'linux':
        return False
    version = re.match(r'(\d+)\.(\d+)', release or os.uname().release)
    return version is not None and tuple(map(int, version.groups())) >= OLDEST_LINUX
