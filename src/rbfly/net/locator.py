"""Where streams are; one Metadata request for all that are needed at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ..error import (
    ProtocolError,
    StreamConnectionError,
    StreamDoesNotExist,
    explained,
    protocol_error,
)
from ..protocol import commands
from ..protocol.commands import Partitions, StreamMetadata
from ..protocol.const import Key, ResponseCode
from .connection import Connection
from .observer import Role
from .pool import Pool
from .retry import Deadline
from .waiting import outcome

METADATA_HEAD = 64  # bytes of a request without the names, rounded up
FRAME_USUAL = 2**20
NAMED = 3  # partitions of a super stream that an error names


class Locator:
    """Asks the broker where streams are."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._batches: dict[Connection, MetadataBatch] = {}

    def leave_loop(self) -> None:
        """Forget what belongs to an event loop that has ended."""
        self._batches.clear()

    async def connection(self, deadline: Deadline) -> Connection:
        """Return a connection for requests that any node answers."""
        return self._pool.responsive() or await self._pool.get(Role.CONSUME, None, deadline)

    async def locate(self, stream: str, deadline: Deadline) -> StreamMetadata:
        """Return the nodes of a stream: a leader, replicas, or both.

        RabbitMQ does not report a node in maintenance, which may lead the stream all the same: the
        other nodes pass messages on to it.

        :raises StreamDoesNotExist: there is no such stream.
        :raises ProtocolError: it has no node at the moment, or the broker refused the request.
        """
        connection = await self.connection(deadline)
        deadline.progress.on_step(f'asking where stream {stream!r} is')
        batch = self._batches.get(connection)
        while batch is None or not batch.add(stream):
            batch = MetadataBatch(connection, lambda: self._batches.pop(connection, None))
            self._batches[connection] = batch
        found = existing(await batch.ask(stream), stream)
        if found.leader is None and not found.replicas:
            problem = f'stream {stream!r} has no leader'
            code = ResponseCode.STREAM_NOT_AVAILABLE
            raise protocol_error(code, problem, command=Key.METADATA)
        return found


class MetadataBatch:
    """Requests the metadata of the streams that tasks need in one turn of the event loop.

    :param on_send: called before the request; the batch takes no streams after that.
    """

    def __init__(self, connection: Connection, on_send: Callable[[], object]) -> None:
        self._streams: dict[str, None] = {}
        self._room = (connection.frame_max or FRAME_USUAL) - METADATA_HEAD
        self._task = asyncio.Task(
            request_metadata(connection, self._streams, on_send), loop=asyncio.get_running_loop()
        )
        # Cancelled, perhaps before it began; or failed, and no caller may wait for the error.
        self._task.add_done_callback(lambda it: on_send() if it.cancelled() else it.exception())

    def add(self, stream: str) -> bool:
        """Add a stream; return False if the request has no room for its name.

        :raises ArgumentError: no stream can have that name.
        """
        if stream not in self._streams:
            self._room -= len(commands.string(stream))
            if self._streams and self._room < 0:
                return False
            self._streams[stream] = None
        return True

    async def ask(self, stream: str) -> StreamMetadata | None:
        """Return where a stream of the batch is; None if there is no such stream."""
        found = await outcome(self._task)
        if found is None:
            raise StreamConnectionError(f'the query for stream {stream!r} was cancelled')
        return found.get(stream)


async def request_metadata(
    connection: Connection, streams: dict[str, None], on_send: Callable[[], object]
) -> dict[str, StreamMetadata]:
    on_send()
    return await connection.request(commands.Metadata(tuple(streams))) if streams else {}


def existing(found: StreamMetadata | None, stream: str) -> StreamMetadata:
    """Return the metadata of a stream that exists, available or not.

    :raises StreamDoesNotExist: there is no such stream.
    :raises ProtocolError: the broker refused the request.
    """
    if found is None or found.code == ResponseCode.STREAM_DOES_NOT_EXIST:
        raise StreamDoesNotExist(stream)
    if found.code not in (ResponseCode.OK, ResponseCode.STREAM_NOT_AVAILABLE):
        raise protocol_error(found.code, stream=stream, command=Key.METADATA)
    return found


async def missing(connection: Connection, stream: str) -> StreamDoesNotExist:
    """Return the error for a stream that does not exist; ask whether it is a super stream.

    :raises StreamConnectionError: the connection was lost.
    """
    partitions = await partitions_of(connection, stream)
    error = StreamDoesNotExist(stream)
    return explained(error, is_super_stream(stream, partitions)) if partitions else error


async def partitions_of(connection: Connection, stream: str) -> tuple[str, ...]:
    """Return the partitions of a super stream; none if there is no such super stream.

    :raises StreamConnectionError: the connection was lost.
    """
    try:
        return await connection.request(Partitions(stream))
    except ProtocolError:
        return ()


def is_super_stream(stream: str, partitions: Sequence[str]) -> str:
    """Return the text of the error for a super stream that is used as a stream."""
    return (
        f'{stream!r} is a super stream, not a stream: use client.super_stream({stream!r}), or its'
        f' partitions, which are streams ({named(partitions)})'
    )


def named(partitions: Sequence[str]) -> str:
    """Return the names of the first partitions, for an error."""
    return ', '.join(map(repr, partitions[:NAMED])) + ', ...' * (len(partitions) > NAMED)
