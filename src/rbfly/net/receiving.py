"""Lets the kernel collect the bytes of a long frame before it wakes the event loop."""

from __future__ import annotations

import os
import re
import socket
import sys
from asyncio import BaseTransport
from collections.abc import Callable
from contextlib import suppress

NEAR = 1000  # microseconds; the longest round trip to a node that is near
RTT_AT = 68  # position of `tcpi_rtt`, microseconds, in `struct tcp_info` of <linux/tcp.h>
OLDEST_LINUX = (5, 12)  # before, the kernel may wait for more bytes than it has memory for


def collect_in(transport: BaseTransport) -> Callable[[int], None] | None:
    """Return a function that sets for how many bytes the event loop waits.

    The end of the connection wakes the loop with fewer, and so does a full receive buffer.

    :returns: None if the loop is to wake for any byte: with TLS, part of the awaited bytes may have
        arrived in an incomplete record; and where a round trip is long, the receive window grows
        slower if the program reads less often.
    """
    found = transport.get_extra_info('socket')
    if not is_supported() or transport.get_extra_info('sslcontext') is not None:
        return None
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    if not 0 < round_trip(found) <= NEAR:
        return None

    def wait_for(count: int) -> None:
        with suppress(OSError, ValueError):  # the transport has closed the socket
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    return wait_for


def round_trip(found: socket.socket) -> int:
    """Return the kernel's estimate in microseconds; 0 if it has none."""
    try:
        facts = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, RTT_AT + 4)
    except OSError:
        return 0
    return int.from_bytes(facts[RTT_AT:], sys.byteorder)


def is_supported(system: str = sys.platform, release: str = '') -> bool:
    """True if the kernel wakes the event loop when its receive buffer is full."""
    if system != 'linux':
        return False
    version = re.match(r'(\d+)\.(\d+)', release or os.uname().release)
    return version is not None and tuple(map(int, version.groups())) >= OLDEST_LINUX
