"""pika: AMQP 0.9.1, blocking and not; a broker takes messages for streams over that, too."""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

from .. import wire
from . import Kind
from .base import Target, Work, bodies

__all__ = ['make']

WINDOW = 10_000  # messages unconfirmed, of all publishers together
PIECE = 1_000  # messages between which the loop gets to write


def parameters(target: Target) -> pika.URLParameters:
    found = pika.URLParameters(target.address)
    # between its turns a blocking connection is idle for minutes, and sends no heartbeats
    found.heartbeat = 0
    return found


def declare(channel: Any, stream: str) -> float:
    """Seconds that the broker takes to answer that there is the stream."""
    start = perf_counter()
    channel.queue_declare(stream, passive=True)
    return perf_counter() - start


class Blocking(Work):
    """One channel of a blocking connection."""

    bodies: list[bytes]

    async def open(self) -> None:
        self.connection = pika.BlockingConnection(parameters(self.target))
        self.channel = self.connection.channel()

    async def prepare(self, count: int) -> None:
        self.bodies = bodies(count)

    async def run(self) -> int:
        publish = self.channel.basic_publish
        stream = self.target.stream
        count = 0
        for body in self.bodies:
            publish('', stream, body)
            count += 1
        return count

    async def finish(self) -> None:
        self.bodies = []

    async def close(self) -> None:
        if self.connection.is_open:
            self.connection.close()

    async def round_trip(self) -> float:
        """Seconds to the broker and back."""
        return declare(self.channel, self.target.stream)


class Unconfirmed(Blocking):
    """Messages are handed to the socket, and that is all that is known of them."""

    async def run(self) -> int:
        count = await super().run()
        # writes what is left, and reads; raises if the broker has closed the connection
        self.connection.process_data_events(0)
        return count

    async def finish(self) -> None:
        await super().finish()
        # answered behind the messages; raises if the channel was closed over one of them
        await self.round_trip()


class Confirmed(Blocking):
    """Each message is confirmed before the next."""

    async def open(self) -> None:
        await super().open()
        self.channel.confirm_delivery()


class Connections(Work):
    """Each message has a connection of its own: connect, publish, confirmed, close."""

    bodies: list[bytes]

    async def open(self) -> None:
        self.parameters = parameters(self.target)
        await self.round_trip()  # so that a broker that is not there is told of here

    async def prepare(self, count: int) -> None:
        self.bodies = bodies(count)

    async def run(self) -> int:
        stream = self.target.stream
        count = 0
        for body in self.bodies:
            with pika.BlockingConnection(self.parameters) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                channel.basic_publish('', stream, body)
            count += 1
        return count

    async def finish(self) -> None:
        self.bodies = []

    async def close(self) -> None:
        pass

    async def round_trip(self) -> float:
        """Seconds to the broker and back, on an open connection."""
        with pika.BlockingConnection(self.parameters) as connection:
            return declare(connection.channel(), self.target.stream)


class Publisher:
    """A channel on an asyncio connection of its own, and which of its messages are confirmed."""

    def __init__(self, target: Target, window: int) -> None:
        self.target = target
        self.window = window
        self.bodies: list[bytes] = []
        self.published = 0  # delivery tag of the last message
        self.below = 0  # confirmed up to this one
        self.beyond: set[int] = set()  # and these behind it
        self.closing = False
        self.error: BaseException | None = None
        self.waiter: asyncio.Future[Any] | None = None

    # -- what pika calls

    def answered(self, answer: Any = None) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(answer)

    def failed(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(error)

    def on_open_error(self, connection: Any, error: BaseException) -> None:
        self.failed(error)

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

    # -- what it is told to do

    async def ask(self, question: Callable[[Callable[..., None]], object]) -> Any:
        """Have pika call back; return what with, or raise if the connection ends first."""
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
                on_open_error_callback=self.on_open_error,
                on_close_callback=self.on_closed,
            )

        self.connection = await self.ask(connect)
        self.channel = await self.ask(lambda done: self.connection.channel(on_open_callback=done))
        self.channel.add_on_close_callback(self.on_channel_closed)
        await self.ask(lambda done: self.channel.confirm_delivery(self.on_confirm, callback=done))

    def confirm(self, tag: int, multiple: bool) -> None:
        """Note that a message is confirmed, or all up to it."""
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
            room = self.window - self.unconfirmed
            if not room:
                await self.confirms()
                continue
            piece = todo[count : count + min(room, PIECE)]
            for body in piece:
                publish('', stream, body)
            self.published += len(piece)
            count += len(piece)
            if room > PIECE:
                await asyncio.sleep(0)  # pika writes when the loop tells it to
        while self.unconfirmed:
            await self.confirms()
        return count

    async def confirms(self) -> None:
        """Wait for more of them."""
        await self.ask(lambda done: None)

    async def round_trip(self) -> float:
        start = perf_counter()
        stream = self.target.stream
        await self.ask(lambda done: self.channel.queue_declare(stream, passive=True, callback=done))
        return perf_counter() - start

    async def close(self) -> None:
        self.closing = True
        if not self.connection.is_closed:
            self.error = None  # of the channel, or of a message: told already
            await self.ask(lambda done: self.connection.close())


class InFlight(Work):
    """Messages are published as long as not too many of them are unconfirmed.

    With several publishers, each has its share of the messages and of what may be unconfirmed.
    """

    def __init__(self, target: Target, publishers: int = 1) -> None:
        super().__init__(target)
        self.publishers = [Publisher(target, WINDOW // publishers) for _ in range(publishers)]

    async def open(self) -> None:
        for publisher in self.publishers:
            await publisher.open()

    async def prepare(self, count: int) -> None:
        messages = bodies(count)
        for number, publisher in enumerate(self.publishers):
            publisher.bodies = messages[number :: len(self.publishers)]

    async def run(self) -> int:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(publisher.run()) for publisher in self.publishers]
        except ExceptionGroup as ex:
            raise ex.exceptions[0] from None
        return sum(task.result() for task in tasks)

    async def finish(self) -> None:
        for publisher in self.publishers:
            publisher.bodies = []

    async def close(self) -> None:
        for publisher in self.publishers:
            await publisher.close()

    async def round_trip(self) -> float:
        """Seconds to the broker and back, of the first publisher."""
        return await self.publishers[0].round_trip()


WAYS: dict[str, type[Work]] = {
    'single': Confirmed,
    'unconfirmed': Unconfirmed,
    'connection': Connections,
}


def make(kind: Kind, target: Target) -> Work:
    way = WAYS.get(kind.work)
    return way(target) if way else InFlight(target, kind.publishers)
