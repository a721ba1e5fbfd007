"""The declaration of a publisher on a connection: made, made again, removed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..error import RbFlyError
from ..net.cluster import Cluster
from ..net.retry import Retry, can_retry
from ..protocol import commands
from ..protocol.const import Key
from .types import PublisherInfo

if TYPE_CHECKING:
    from ..net.connection import Connection

__all__ = ['declare', 'delete_publisher']


async def declare(
    cluster: Cluster, info: PublisherInfo, retry: Retry, *, again: bool = False
) -> tuple[Connection, int, int]:
    """Declare a publisher: its connection, its id there, and the last publishing id of its name.

    :param again: it was declared before.
    """
    while True:
        connection = await cluster.publishing(info.stream, retry)
        retry.on_step(f'declaring a publisher of stream {info.stream!r}')
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
                raise connection.error.with_traceback(None)
            return connection, publisher_id, last_id
        except RbFlyError as ex:
            delete_publisher(connection, publisher_id)
            if not can_retry(ex, Key.DECLARE_PUBLISHER, again):
                raise
            error = ex
        except BaseException:
            delete_publisher(connection, publisher_id)
            raise
        await retry.wait(error)


def delete_publisher(connection: Connection, publisher_id: int) -> asyncio.Future[bytes] | None:
    """Remove a publisher that may or may not be declared; the broker's answer frees its id."""
    if not connection.is_open:
        return None
    future = connection.send_request(commands.DeletePublisher(publisher_id))
    future.add_done_callback(lambda _: connection.publisher_ids.add(publisher_id))
    return future
