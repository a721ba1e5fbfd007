"""Waits for an event of a client."""

import asyncio
from typing import TypeVar

from rbfly.streams import events

HANG = 20.0  # seconds; only a safeguard
E = TypeVar('E', bound=events.Event)


async def find(found: events.Events, kind: type[E]) -> E:
    """Return the next event of a kind."""
    async with asyncio.timeout(HANG):
        async for event in found:
            if type(event) is kind:
                return event
    raise AssertionError(f'no {kind.__name__}')
