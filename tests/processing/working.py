"""Work of the tests of `process`."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Any

import rbfly.streams as rbs
from rbfly.processing import ProcessSummary, process
from rbfly.testing import StreamBroker

HANG = 40.0  # seconds; only a bug makes a test wait that long


@contextlib.asynccontextmanager
async def client_in_memory(count: int) -> AsyncIterator[rbs.StreamsClient]:
    """A client of a broker in this event loop, whose stream `orders` has the numbers from 0."""
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('orders')
        broker.publish('orders', *range(count))
        yield client


def reading(client: rbs.StreamsClient, stream: str, **options: Any) -> Any:
    """Subscribe to all messages that a stream has now; offsets are stored as `reader`."""
    start = rbs.Offset.reference('reader', default=rbs.Offset.FIRST)
    settings: dict[str, Any] = {'offset': start, 'commit': 'manual', 'until': 'now'}
    return client.subscribe(stream, **settings | options)


async def in_time(call: Any) -> Any:
    """Await a call that ends soon unless there is a bug."""
    async with asyncio.timeout(HANG):
        return await call


async def until_stored(client: rbs.StreamsClient, stream: str, offset: int) -> None:
    """Wait until an offset is stored."""
    async with asyncio.timeout(HANG):
        while (stored := await client.read_offset(stream, 'reader')) != offset:
            assert stored is None or stored < offset
            await asyncio.sleep(0.01)


class Work:
    """Notes messages when their work begins and ends; some of them wait until they are let go.

    :param held: the messages that wait.
    :ivar begun: messages whose work has begun, in order.
    :ivar ended: messages whose work has ended without an error, in order.
    :ivar cancelled: messages whose work was cancelled.
    """

    def __init__(self, *held: Any) -> None:
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.cancelled: list[Any] = []
        self._gates = {message: asyncio.Event() for message in held}

    async def __call__(self, message: Any) -> None:
        self.begun.append(message)
        try:
            if message in self._gates:
                await self._gates[message].wait()
            else:
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.append(message)
            raise
        self.ended.append(message)

    def let_go(self, message: Any) -> None:
        """End the work on a message that waits."""
        self._gates[message].set()


class InOrder:
    """Fails if two messages with a key are worked on at once, or not in order.

    :param key: function of a message.
    :ivar seen: messages in the order in which their work ended, by key.
    """

    def __init__(self, key: Callable[[Any], Hashable]) -> None:
        self.key = key
        self.seen: dict[Hashable, list[Any]] = defaultdict(list)
        self._in_work = set[Hashable]()

    async def __call__(self, message: Any) -> None:
        key = self.key(message)
        assert key not in self._in_work
        self._in_work.add(key)
        try:
            await asyncio.sleep(0)
        finally:
            self._in_work.remove(key)
        self.seen[key].append(message)


def start(messages: Any, work: Any, **options: Any) -> asyncio.Task[ProcessSummary]:
    """Call `process` in a task."""
    return asyncio.create_task(process(messages, work, **options))
