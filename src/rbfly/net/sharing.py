"""Share one connect, or one Metadata request, between the registrations that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ..error import RbFlyError, StreamConnectionError, copy_error
from ..protocol import commands
from ..protocol.commands import StreamMetadata
from .connection import Connection
from .retry import Backoff, Deadline
from .waiting import settled

__all__ = ['MetadataBatch', 'SharedConnect']

METADATA_HEAD = 64  # bytes of a request but the names, and some more
FRAME_USUAL = 2**20


Connect = Callable[[Sequence[Deadline]], Awaitable[Connection | StreamConnectionError]]


class SharedConnect:
    """Connecting to a node in a role: one at a time, whose outcome all who wait for it share.

    :param connect: tries each address once, for those who wait; gives a connection with a free id,
        or why there is none.
    :ivar waiting: until when they do.
    :ivar task: gives the connection; it has a free id, but perhaps not for all of them.
    """

    def __init__(self, connect: Connect) -> None:
        self.waiting: list[Deadline] = []
        # never an eager one: nobody waits yet
        self.task = asyncio.Task(run(connect, self.waiting), loop=asyncio.get_running_loop())

    async def join(self, deadline: Deadline) -> Connection | None:
        """Wait for the connection, None if there is to be none; the last one to leave ends it.

        :raises RbFlyError: no further try would help, or a load balancer led elsewhere.
        """
        if self.waiting:
            deadline.follow(self.waiting[0])
        self.waiting.append(deadline)
        try:
            await settled(self.task)
        finally:
            self.waiting.remove(deadline)
            deadline.part()
            if not self.waiting:
                self.task.cancel()
        if self.task.cancelled():
            return None
        error = self.task.exception()
        if error is not None:
            raise copy_error(error) if isinstance(error, RbFlyError) else error
        return self.task.result()


async def run(connect: Connect, waiting: list[Deadline]) -> Connection:
    # Not of the class: the frame of a task that was cancelled would lead to that task.
    backoff = Backoff()
    while True:
        found = await connect(waiting)
        if isinstance(found, Connection):
            return found
        await backoff.wait(found, waiting)


Asked = asyncio.Future[StreamMetadata | None]


class MetadataBatch:
    """Metadata by one connection: what is asked in a turn of the event loop goes together."""

    def __init__(self, connection: Connection, on_send: Callable[[], object]) -> None:
        self._connection = connection
        self._on_send = on_send  # nothing is asked of it any more
        self._asked: dict[str, tuple[int, list[Asked]]] = {}
        self._task = asyncio.Task(self._send(), loop=asyncio.get_running_loop())

    def ask(self, stream: str) -> Asked:
        """Where a stream is; None if there is none of that name.

        :raises ArgumentError: that is no name at all.
        """
        size = len(commands.string(stream))
        future: Asked = asyncio.get_running_loop().create_future()
        self._asked.setdefault(stream, (size, []))[1].append(future)
        return future

    async def _send(self) -> None:
        self._on_send()
        while asked := self._take():
            found: dict[str, StreamMetadata] = {}
            error: RbFlyError | None = None
            try:
                found = await self._connection.request(commands.Metadata(tuple(asked)))
            except RbFlyError as ex:
                error = ex
            for stream, futures in asked.items():
                for future in futures:
                    if future.done():
                        continue
                    if error is None:
                        future.set_result(found.get(stream))
                    else:
                        future.set_exception(copy_error(error))
                        future.exception()  # seen: nobody may be waiting any more

    def _take(self) -> dict[str, list[Asked]]:
        """As many as a frame holds."""
        asked: dict[str, list[Asked]] = {}
        left = (self._connection.frame_max or FRAME_USUAL) - METADATA_HEAD
        for stream, (size, futures) in list(self._asked.items()):
            left -= size
            if left < 0 and asked:
                break
            asked[stream] = futures
            del self._asked[stream]
        return asked
