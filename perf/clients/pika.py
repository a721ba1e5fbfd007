"""pika: AMQP 0.9.1, blocking and asynchronous, which can also publish to streams."""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

from brokers import wire

from ..lanes import Kind
from .base import Target, Work

WINDOW = 10_000  # maximum number of messages in flight, of all publishers together
PIECE = 1_000  # messages after which the event loop can write


def parameters(target: Target) -> pika.URLParameters:
    options = pika.URLParameters(target.address)
    # a blocking connection sends no heartbeats while idle, for minutes between its turns
    options.heartbeat = 0
    return options


def declare(channel: Any, stream: str) -> float:
    """Seconds until the broker confirms that the stream exists."""
    start = perf_counter()
    channel.queue_declare(stream, passive=True)
    return perf_counter() - start


class Blocking(Work):
    """One channel of a blocking connection."""

    async def open(self) -> None:
        self.connection = pika.BlockingConnection(parameters(self.target))
        self.channel = self.connection.channel()

    async def run(self) -> int:
        publish = self.channel.basic_publish
        stream = self.target.stream
        count = 0
        for body in self.messages:
            publish('', stream, body)
            count += 1
        return count

    async def close(self) -> None:
        if self.connection.is_open:
            self.connection.close()

    async def round_trip(self) -> float:
        """Seconds for a round trip to the broker."""
        return declare(self.channel, self.target.stream)


class Unconfirmed(Blocking):
    """Write messages to the socket, without confirms."""

    async def run(self) -> int:
        count = await super().run()
        # writes what remains, and reads; raises if the broker has closed the connection
        self.connection.process_data_events(0)
        return count

    async def finish(self) -> None:
        await super().finish()
        # the broker answers after processing the messages; raises if one of them closed the channel
        await self.round_trip()


class Confirmed(Blocking):
    """Await the confirm of each message before sending the next."""

    async def open(self) -> None:
        await super().open()
        self.channel.confirm_delivery()


class Connections(Work):
    """A new connection for each message: connect, publish, await the confirm, close."""

    async def open(self) -> None:
        self.parameters = parameters(self.target)
        await self.round_trip()  # fail here if the broker is not available

    async def run(self) -> int:
        stream = self.target.stream
        count = 0
        for body in self.messages:
            with pika.BlockingConnection(self.parameters) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                channel.basic_publish('', stream, body)
            count += 1
        return count

    async def close(self) -> None:
        pass

    async def round_trip(self) -> float:
        """Seconds for a round trip to the broker, on an open connection."""
        with pika.BlockingConnection(self.parameters) as connection:
            return declare(connection.channel(), self.target.stream)


class Publisher:
    """A channel on its own asyncio connection, tracking which messages are confirmed."""

    def __init__(self, target: Target, window: int) -> None:
        self.target = target
        self.window = window
        self.bodies: list[bytes] = []
        self.published = 0  # delivery tag of the last message
        self.below = 0  # all messages up to this one are confirmed
        self.beyond: set[int] = set()  # confirmed messages after that
        self.closing = False
        self.error: BaseException | None = None
        self.waiter: asyncio.Future[Any] | None = None

    # -- callbacks

    def answered(self, answer: Any = None) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(answer)

    def failed(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(error)

    def on_channel_closed(self, channel: Any, error: BaseException) -> None:
        if not self.closing:
            self.failed(error)

    def on_closed(self, connection: Any, error: BaseException) -> None:
        if self.closing:
            self.answered()
        else:
            self.failed(error)

    def on_confirm(self, frame: Any) -> None:
        method = frame.method
        if not isinstance(method, pika.spec.Basic.Ack):
            self.failed(wire.WireError(f'not confirmed: {method}'))
            return
        self.confirm(method.delivery_tag, method.multiple)
        self.answered()

    # -- operations

    async def ask(self, question: Callable[[Callable[..., None]], object]) -> Any:
        """Start an operation; return what pika calls back with, or raise if the connection ends."""
        if self.error is not None:
            raise self.error
        self.waiter = asyncio.get_running_loop().create_future()
        question(self.answered)
        return await self.waiter

    async def open(self) -> None:
        def connect(done: Callable[..., None]) -> None:
            AsyncioConnection(
                parameters(self.target),
                on_open_callback=done,
                on_open_error_callback=self.on_closed,
                on_close_callback=self.on_closed,
            )

        self.connection = await self.ask(connect)
        self.channel = await self.ask(lambda done: self.connection.channel(on_open_callback=done))
        self.channel.add_on_close_callback(self.on_channel_closed)
        await self.ask(lambda done: self.channel.confirm_delivery(self.on_confirm, callback=done))

    def confirm(self, tag: int, multiple: bool) -> None:
        """Record the confirm of a message, or of all messages up to it."""
        beyond = self.beyond
        if multiple:
            self.below = max(self.below, tag)
            if beyond:
                self.beyond = beyond = {other for other in beyond if other > self.below}
        else:
            beyond.add(tag)
        while self.below + 1 in beyond:
            self.below += 1
            beyond.remove(self.below)

    @property
    def unconfirmed(self) -> int:
        return self.published - self.below - len(self.beyond)

    async def run(self) -> int:
        publish = self.channel.basic_publish
        stream = self.target.stream
        todo = self.bodies
        count = 0
        while count < len(todo):
            free = self.window - self.unconfirmed
            if not free:
                await self.confirms()
                continue
            piece = todo[count : count + min(free, PIECE)]
            for body in piece:
                publish('', stream, body)
            self.published += len(piece)
            count += len(piece)
            if free > PIECE:
                await asyncio.sleep(0)  # let pika write
        while self.unconfirmed:
            await self.confirms()
        return count

    async def confirms(self) -> None:
        """Wait for more confirms."""
        await self.ask(lambda done: None)

    async def round_trip(self) -> float:
        start = perf_counter()
        stream = self.target.stream
        await self.ask(lambda done: self.channel.queue_declare(stream, passive=True, callback=done))
        return perf_counter() - start

    async def close(self) -> None:
        self.closing = True
        if not self.connection.is_closed:
            self.error = None  # of the channel or a message; already raised
            await self.ask(lambda done: self.connection.close())


class InFlight(Work):
    """Publish while there are not too many messages in flight.

    Several publishers share the messages and the limit evenly.
    """

    def __init__(self, kind: Kind, target: Target) -> None:
        super().__init__(kind, target)
        window = WINDOW // kind.publishers
        self.publishers = [Publisher(target, window) for _ in range(kind.publishers)]

    async def open(self) -> None:
        for publisher in self.publishers:
            await publisher.open()

    async def prepare(self, count: int) -> None:
        await super().prepare(count)
        for number, publisher in enumerate(self.publishers):
            publisher.bodies = self.messages[number :: len(self.publishers)]

    async def run(self) -> int:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(publisher.run()) for publisher in self.publishers]
        except ExceptionGroup as ex:
            raise ex.exceptions[0] from None
        return sum(task.result() for task in tasks)

    async def finish(self) -> None:
        await super().finish()
        for publisher in self.publishers:
            publisher.bodies = []

    async def close(self) -> None:
        for publisher in self.publishers:
            await publisher.close()

    async def round_trip(self) -> float:
        """Seconds for a round trip to the broker, of the first publisher."""
        return await self.publishers[0].round_trip()


WAYS: dict[str, type[Work]] = {
    'single': Confirmed,
    'unconfirmed': Unconfirmed,
    'connection': Connections,
}


def make(kind: Kind, target: Target) -> Work:
    return WAYS.get(kind.work, InFlight)(kind, target)
