"""Addresses of host names: which ones a name has, and in which order to try them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count
from socket import SOCK_STREAM
from typing import TypeVar

from ..time_limits import time_limit

K = TypeVar('K')
V = TypeVar('V')

KEPT = 256  # entries of a Recent
LOOKUP = 1.0  # seconds to look up a name that was resolved before


class Recent(dict[K, V]):
    """A dict of the entries that were set last; it forgets the oldest ones."""

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > KEPT:
            del self[next(iter(self))]


class Resolver:
    """Resolves host names, and puts the addresses last that were tried last without success."""

    def __init__(self) -> None:
        self._known = Recent[str, list[str]]()  # the addresses of the last lookup
        self._tried = Recent[tuple[str, int], int]()
        self._tries = count(1)

    async def resolve(self, host: str, port: int, limit: float) -> list[str]:
        """Return the IP addresses of a host, in the order in which to try them.

        If a lookup fails or takes long, for example because other work occupies the threads of the
        event loop, the addresses of the last lookup are used.

        :param limit: seconds for the lookup, and for trying the addresses.
        :raises OSError: the name cannot be resolved.
        :raises ValueError: the name is malformed.
        """
        from ipaddress import ip_address

        found = [host]
        with suppress(ValueError):
            ip_address(host)
            return found
        known = self._known.get(host)
        try:
            async with time_limit(None if known is None else min(LOOKUP, limit / 4)):
                found = await lookup(host, port)
        except (OSError, TimeoutError):
            if known is None:
                raise
            found = known
        self._known[host] = found
        return sorted(found, key=lambda item: self._tried.get((item, port), 0))

    def on_try(self, address: str, port: int) -> None:
        """Note that an address is tried: unless that succeeds, the next attempt tries it last."""
        self._tried[address, port] = next(self._tries)

    def on_success(self, address: str, port: int) -> None:
        """Note that an address has led to a broker."""
        self._tried.pop((address, port), None)


async def lookup(host: str, port: int) -> list[str]:
    """Return the addresses of a host name, without duplicates."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
