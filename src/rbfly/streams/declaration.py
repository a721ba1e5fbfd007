"""USER room: the declaration of a publisher on a connection: made, made again, removed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..error import RbFlyError
from . import commands
from .const import ResponseCode
from .error import (
    AuthenticationError,
    FrameError,
    ProtocolError,
    StreamConnectionError,
    StreamDoesNotExist,
    VirtualHostError,
)
from .topology import Patience, Topology
from .types import PublisherInfo

if TYPE_CHECKING:
    from .connection import Connection

__all__ = ['declare', 'delete_publisher']


async def declare(
    topology: Topology, info: PublisherInfo, *, again: bool = False
) -> tuple[Connection, int, int]:
    """Declare a publisher: its connection, its id there, and the last publishing id of its name.

    :param again: it was declared before: all but what no retry can mend is tried again.
    """
    patience = Patience(topology)
    while True:
        connection = await topology.publishing(info.stream)
        publisher_id = connection.publisher_ids.pop()
        last_id = 0
        try:
            await connection.request(
                commands.DeclarePublisher(publisher_id, info.name, info.stream)
            )
            if info.name:
                last_id = await connection.request(
                    commands.QueryPublisherSequence(info.name, info.stream)
                )
            if connection.error is not None:  # lost in the turn of the answer
                raise StreamConnectionError(str(connection.error))
            return connection, publisher_id, last_id
        except RbFlyError as ex:
            delete_publisher(connection, publisher_id)
            if not can_retry(ex, again):
                raise
            error = ex
        except BaseException:
            delete_publisher(connection, publisher_id)
            raise
        await patience.wait(error)


def can_retry(error: RbFlyError, again: bool) -> bool:
    if not isinstance(error, ProtocolError):
        return isinstance(error, StreamConnectionError) and not isinstance(error, FrameError)
    if not again:
        return error.code == ResponseCode.STREAM_NOT_AVAILABLE
    final = (StreamDoesNotExist, AuthenticationError, VirtualHostError)
    return not isinstance(error, final) and error.code != ResponseCode.ACCESS_REFUSED


def delete_publisher(connection: Connection, publisher_id: int) -> asyncio.Future[bytes] | None:
    """Remove a publisher that may or may not be declared; the broker's answer frees its id."""
    if not connection.is_open:
        return None
    future = connection.send_request(commands.DeletePublisher(publisher_id))
    future.add_done_callback(lambda _: connection.publisher_ids.add(publisher_id))
    return future
