"""Writes the parts of a frame to a transport, which does not copy them if it can."""

from __future__ import annotations

from asyncio import Transport
from collections.abc import Callable


def gather_to(transport: Transport) -> Callable[[list[bytes]], None]:
    """Return a function that writes a list of bytes, one after the other."""
    # With TLS, each part would be a record of its own.
    join = never_pauses(transport) or transport.get_extra_info('sslcontext') is not None

    def gather(parts: list[bytes]) -> None:
        if join:
            # A view, because asyncio cuts what it has encrypted off by slicing.
            transport.write(memoryview(b''.join(parts)))
        elif not transport.is_closing():  # else asyncio would watch a socket that it has closed
            transport.writelines(parts)

    return gather


def never_pauses(transport: Transport) -> bool:
    """True if `writelines` of a transport does not pause its protocol, however much it buffers.

    That of asyncio does not in CPython 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 (CVE-2024-12254).
    """
    if type(transport).__module__ != 'asyncio.selector_events':
        return False
    return '_maybe_pause_protocol' not in type(transport).writelines.__code__.co_names
