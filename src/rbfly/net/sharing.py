"""Share one connect, or one Metadata request, between the registrations that wait for it."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence

from ..error import ProtocolError, StreamConnectionError, StreamDoesNotExist, protocol_error
from ..protocol import commands
from ..protocol.commands import Partitions, StreamMetadata
from ..protocol.const import Key, ResponseCode
from .connection import Connection
from .retry import Backoff, Deadline, Progress
from .waiting import outcome

METADATA_HEAD = 64  # bytes of a request without the names, rounded up
FRAME_USUAL = 2**20
NAMED = 3  # partitions of a super stream that an error names

Connect = Callable[[Progress, Sequence[Deadline]], Awaitable[Connection]]


class SharedConnect:
    """Connects to a node in a role, for all tasks that wait for it.

    :param connect: tries each address once, within the deadlines; raises `progress.error` if
        another try may succeed.
    :param linger: if the last deadline expires during a try, complete the try.
    :ivar task: returns the connection; it may have fewer free ids than tasks that wait.
    """

    def __init__(self, connect: Connect, linger: bool = False) -> None:
        self._linger = linger
        self._progress = Progress()
        self._backoff = Backoff()
        self.task: asyncio.Task[Connection] = asyncio.Task(  # never eager: no task waits yet
            run(connect, self._progress, self._backoff), loop=asyncio.get_running_loop()
        )

    async def join(self, deadline: Deadline) -> Connection | None:
        """Wait for the connection; return None if the connect was cancelled.

        When the last waiting task leaves, it cancels the connect, unless that lingers.

        :raises RbFlyError: no further try would help, or a load balancer led to another node.
        """
        waiting = self._backoff.deadlines
        waiting.append(deadline)
        if self._backoff.error is not None:
            deadline.on_wait(self._backoff.error, self._backoff.retry_at)
        try:
            found = await outcome(self.task)
        finally:
            waiting.remove(deadline)
            before = deadline.progress.error
            deadline.progress = copy.copy(self._progress)
            if not self.task.done() and deadline.progress.error is None:
                deadline.progress.error = before
            lingers = self._linger and deadline.expired and self._backoff.error is None
            if not (waiting or lingers):
                self.task.cancel()
        deadline.on_wait(None, 0.0)  # has an effect only if a connect that backed off was cancelled
        return found

    def wake(self) -> None:
        """Try again now, if waiting before the next try."""
        self._backoff.wake()


async def run(connect: Connect, progress: Progress, backoff: Backoff) -> Connection:
    # A function, because the frame of a cancelled method would keep its task alive.
    return await backoff.retry(
        lambda: connect(progress, backoff.deadlines),
        lambda error: error is progress.error and error.retriable and bool(backoff.deadlines),
    )


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
    if partitions:
        error.args = (is_super_stream(stream, partitions),)
    return error


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
