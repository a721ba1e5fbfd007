"""Replaces a connection that works: its publishers and subscriptions move to a new one."""

from __future__ import annotations

import asyncio

from ..error import StreamConnectionError
from .connection import Connection
from .observer import Life, Observer, Observers, State

DRAIN = 5.0  # seconds to wait for confirms before a connection is closed without them
POLL = 0.005  # seconds
WAITING = State.OPENING, State.BACKING_OFF


class Moved(Observer):
    """Knows which of some registrations are not declared again yet."""

    def __init__(self, connection: Connection) -> None:
        self._registrations = set[object](connection.registrations)
        self._states: dict[object, State] = {}
        self._changed = asyncio.Event()

    def on_transition(
        self,
        registration: object,
        before: State | Life,
        after: State | Life,
        error: Exception | None,
    ) -> None:
        if isinstance(after, State) and registration in self._registrations:
            self._states[registration] = after
            self._changed.set()

    async def wait(self) -> None:
        """Wait until each of them is open, was closed, or needs no connection."""
        while any(state in WAITING for state in self._states.values()):
            self._changed.clear()
            await self._changed.wait()


async def move(connection: Connection, observers: Observers) -> None:
    """Close a connection, and wait until its publishers and subscriptions are open elsewhere.

    Publishers first stop writing and await their confirms, so that they resend nothing.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + DRAIN
    moved = Moved(connection)
    observers.add(moved)
    try:
        connection.hold(True)
        while (  # noqa: ASYNC110 - no event says that all is confirmed
            connection.is_open and connection.has_unconfirmed and loop.time() < end
        ):
            await asyncio.sleep(POLL)
        error = StreamConnectionError(f'{connection.address}: the program reconnects')
        error._is_move = True
        connection.abort(error)
        await asyncio.sleep(0)  # registrations are lost in this turn, or begin to reconnect
        await moved.wait()
    except asyncio.CancelledError:
        if connection.is_open:
            connection.hold(False)
        raise
    finally:
        observers.remove(moved)
