"""RbFly."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from functools import partial
from time import perf_counter
from typing import Any, ClassVar

import rbfly.otel
import rbfly.streams as rbs

from ..lanes import Kind
from .base import Target, Work, bodies, numbered
from .codec import APP_PROPERTIES, PROPERTIES
from .open_loop import OpenLoop
from .values import MESSAGES, context

SUB_ENTRY = 100
REPEATED = 100_000  # messages to create where creating all of them would take too much memory


def unsampled_provider() -> Any:
    """Return a provider of tracers that samples no span."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    return TracerProvider(sampler=ALWAYS_OFF)


class Client(Work):
    """What these lanes share: opening and closing the client.

    :ivar amqp: publish AMQP 1.0 messages instead of raw bytes.
    :ivar options: additional arguments for the client.

    :param metrics: let OpenTelemetry collect metrics.
    """

    def __init__(
        self,
        kind: Kind,
        target: Target,
        amqp: bool = True,
        traced: bool = False,
        metrics: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(kind, target)
        self.amqp = amqp
        self.options = options
        if traced:
            self.options = {**options, 'tracing': rbfly.otel.tracing(unsampled_provider())}
        if metrics:
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import InMemoryMetricReader

            provider = MeterProvider([InMemoryMetricReader()])
            self.options = options | {'metrics': rbfly.otel.metrics(provider)}
        if context := target.tls_context:
            self.options = {**self.options, 'ssl': context}
        self.stack = AsyncExitStack()

    async def open(self) -> None:
        self.client = await self.stack.enter_async_context(
            rbs.streams_client(self.target.address, **self.options)
        )

    async def round_trip(self) -> float:
        await self.client.get_protocol()
        start = perf_counter()
        await self.client.stream_stats(self.target.stream)
        return perf_counter() - start

    async def close(self) -> None:
        await self.stack.aclose()


class Single(Client):
    async def open(self) -> None:
        await super().open()
        opened = self.opener(amqp=self.amqp, **self.arguments())
        self.publisher: rbs.Publisher = await self.stack.enter_async_context(opened)

    def opener(self, **arguments: Any) -> Any:
        """Return what opens the publisher."""
        return self.client.publisher(self.target.stream, **arguments)

    def arguments(self) -> dict[str, Any]:
        """Additional arguments for the publisher."""
        return {}

    async def prepare(self, count: int) -> None:
        await super().prepare(count)
        if value := self.kind.value:
            message = MESSAGES[value]
            self.messages = [
                context(value) if message.app_properties else message.body for _ in range(count)
            ]

    async def run(self) -> int:
        send = self.publisher.send
        count = 0
        for body in self.messages:
            await send(body)
            count += 1
        return count


class Gaps(Single):
    """Work for `at` microseconds after each confirm."""

    async def run(self) -> int:
        send = self.publisher.send
        gap = self.kind.at / 1e6
        count = 0
        for body in self.messages:
            await send(body)
            count += 1
            end = perf_counter() + gap
            while perf_counter() < end:
                pass
        return count


class Window(Single):
    def arguments(self) -> dict[str, Any]:
        return {'max_unconfirmed': self.kind.window}

    async def run(self) -> int:
        return await self.publisher.send_many(self.messages)


class SubEntries(Window):
    def arguments(self) -> dict[str, Any]:
        return {'sub_entry_size': SUB_ENTRY, 'max_unconfirmed': self.kind.window * SUB_ENTRY}


class Tasks(Single):
    """Several tasks share the messages."""

    async def run(self) -> int:
        tasks = self.kind.tasks
        part = len(self.messages) // tasks
        async with asyncio.TaskGroup() as group:
            for i in range(tasks):
                group.create_task(self.each(self.messages[i * part : (i + 1) * part]))
        return part * tasks

    async def each(self, data: list[bytes]) -> None:
        send = self.publisher.send
        for body in data:
            await send(body)


class Publishers(Single):
    """Several publishers share the messages, using the same stream or one each."""

    async def open(self) -> None:
        await Client.open(self)
        name, streams = self.target.stream, self.kind.streams
        self.publishers = [
            await self.stack.enter_async_context(
                self.client.publisher(f'{name}-{i}' if streams > 1 else name)
            )
            for i in range(max(self.kind.publishers, streams))
        ]

    async def run(self) -> int:
        part = len(self.messages) // len(self.publishers)
        counts = await asyncio.gather(
            *(
                publisher.send_many(self.messages[i * part : (i + 1) * part])
                for i, publisher in enumerate(self.publishers)
            )
        )
        return sum(counts)


class Repeat(Single):
    """Send the same messages repeatedly: more than fit in memory."""

    async def prepare(self, count: int) -> None:
        self.count = count
        self.messages = bodies(min(count, REPEATED))

    async def run(self) -> int:
        count = 0
        while left := self.count - count:
            count += await self.publisher.send_many(self.messages[:left])
        return count


class Batch(Single):
    async def prepare(self, count: int) -> None:
        data = bodies(count)
        size = self.kind.size
        self.messages = [data[i : i + size] for i in range(0, count, size)]

    async def run(self) -> int:
        batch = self.publisher.batch
        flush = self.publisher.flush
        count = 0
        for data in self.messages:
            for body in data:
                batch(body)
            await flush()
            count += len(data)
        return count


class SubBatch(Batch):
    """A batch is a sub-entry."""

    def arguments(self) -> dict[str, Any]:
        return {'sub_entry_size': self.kind.size}


class Atomic(Batch):
    """A batch is a sub-entry, of whose messages the broker stores all or none."""

    async def run(self) -> int:
        send_atomic = self.publisher.send_atomic
        count = 0
        for data in self.messages:
            await send_atomic(data)
            count += len(data)
        return count


class Consume(Client):
    """Several subscriptions at the same time, each of which consumes the whole stream.

    :cvar reading: additional arguments for the subscriptions.
    """

    reading: ClassVar[dict[str, Any]] = {}

    def __init__(self, kind: Kind, target: Target, **options: Any) -> None:
        super().__init__(kind, target, **options)
        assert kind.stored is not None
        self.stored = kind.stored
        self.subscriptions: list[rbs.Subscription] = []

    async def open(self) -> None:
        await super().open()
        (subscription,) = self.subscribe(1)
        received: list[Any] = []
        async with aclosing(self.checked(subscription)) as items:
            while len(received) < self.stored.frame:
                received.append(await anext(items))
        await subscription.aclose()
        if received != [self.body(i) for i in range(self.stored.frame)]:
            raise ValueError('the received bodies differ from the published ones')

    def body(self, number: int) -> Any:
        """Body of the message with this number."""
        value = self.stored.value
        return MESSAGES[value].body if value else numbered(number, self.stored.size)

    def subscribe(self, count: int) -> list[rbs.Subscription]:
        subscribe = self.client.subscribe
        first = rbs.Offset.FIRST
        return [subscribe(self.target.stream, offset=first, **self.reading) for _ in range(count)]

    async def prepare(self, count: int) -> None:
        self.count = count // self.stored.readers
        self.subscriptions = self.subscribe(self.stored.readers)

    async def run(self) -> int:
        self.last = await asyncio.gather(*(self.read(s, self.count) for s in self.subscriptions))
        return sum(count for count, _ in self.last)

    async def finish(self) -> None:
        for subscription in self.subscriptions:
            await subscription.aclose()
        self.subscriptions = []
        for count, data in self.last:
            if data != self.body(count - 1):
                raise ValueError(f'message {count - 1} has the body {repr(data)[:50]}')

    async def checked(self, subscription: rbs.Subscription) -> AsyncGenerator[Any, None]:
        """Yield bodies; check what else messages have."""
        async for body in subscription:
            yield body

    async def read(self, subscription: rbs.Subscription, count: int) -> tuple[int, Any]:
        """Read at least `count` messages; return how many, and the last body."""
        left = count
        data = None
        async for data in subscription:  # noqa: B007 - the last one is checked
            left -= 1
            if not left:
                break
        return count - left, data


class ConsumeBatches(Consume):
    async def checked(self, subscription: rbs.Subscription) -> AsyncGenerator[Any, None]:
        async for batch in subscription.batches():
            for body in batch:
                yield body

    async def read(self, subscription: rbs.Subscription, count: int) -> tuple[int, Any]:
        left = count
        data = None
        async for batch in subscription.batches():
            for data in batch:  # noqa: B007 - read each one; the last is checked
                pass
            left -= len(batch)
            if left <= 0:
                break
        return count - left, data


class ConsumeViews(ConsumeBatches):
    """The bodies are views of the received memory, not copies."""

    reading: ClassVar[dict[str, Any]] = {'copy': False}


class ConsumeMessages(Consume):
    async def checked(self, subscription: rbs.Subscription) -> AsyncGenerator[Any, None]:
        offset = 0
        async for message in subscription.messages():
            if self.stored.properties:
                received = message.properties
                properties = {name: str(getattr(received, name)) for name in PROPERTIES}
                if (properties, message.app_properties) != (PROPERTIES, APP_PROPERTIES):
                    raise ValueError(f'the properties differ from the published ones: {received}')
            if (value := self.stored.value) and (
                message.app_properties != MESSAGES[value].app_properties
            ):
                raise ValueError(
                    'the application properties differ from the published ones:'
                    f' {message.app_properties}'
                )
            if message.stream_offset != offset:
                raise ValueError(f'offset {message.stream_offset} for message {offset}')
            yield message.body
            offset += 1

    async def read(self, subscription: rbs.Subscription, count: int) -> tuple[int, Any]:
        left = count
        data = None
        properties = self.stored.properties or self.stored.value
        async for message in subscription.messages():
            _ = message.stream_offset, message.stream_timestamp
            if properties:
                _ = message.properties, message.app_properties
            data = message.body
            left -= 1
            if not left:
                break
        return count - left, data


class AtFixedRate(OpenLoop):
    """One task per message awaits `Publisher.send`; `async for` consumes bodies."""

    def __init__(self, kind: Kind, target: Target) -> None:
        super().__init__(kind, target)
        self.stack = AsyncExitStack()

    async def open(self) -> None:
        address = self.target.address
        enter = self.stack.enter_async_context
        consumer = await enter(rbs.streams_client(address))
        publisher = await enter(rbs.streams_client(address))
        subscription = await enter(consumer.subscribe(self.target.stream, offset=rbs.Offset.NEXT))
        self.spawn(self.read(subscription))
        self.publisher: rbs.Publisher = await enter(publisher.publisher(self.target.stream))
        async with asyncio.timeout(self.patience):
            # there is no public way to wait for this
            while not subscription._session.registration.is_open:
                if self.error is not None:
                    raise self.error
                await asyncio.sleep(0.01)

    async def read(self, subscription: rbs.Subscription) -> None:
        consumed = self.consumed
        async for body in subscription:
            consumed(body)

    def send(self, first: int, end: int) -> None:
        for index in range(first, end):
            self.spawn(self.one(index))

    async def one(self, index: int) -> None:
        await self.publisher.send(self.bodies[index])
        self.confirmed(index)

    async def close(self) -> None:
        await self.end_tasks()
        await self.stack.aclose()


class SubmitAtFixedRate(AtFixedRate):
    """Each tick, a task calls `Publisher.submit` for all due messages."""

    def send(self, first: int, end: int) -> None:
        self.spawn(self.submit(range(first, end)))

    async def submit(self, indices: range) -> None:
        submit = self.publisher.submit
        for index in indices:
            confirm = await submit(self.bodies[index])
            confirm.add_done_callback(partial(self.on_confirm, index))

    def on_confirm(self, index: int, confirm: 'asyncio.Future[None]') -> None:
        if error := confirm.exception():
            assert isinstance(error, Exception)
            self.fail(error)
        else:
            self.confirmed(index)


MAKE: dict[str, type[Work]] = {
    'single': Single,
    'gaps': Gaps,
    'batch': Batch,
    'sub-batch': SubBatch,
    'window': Window,
    'tasks': Tasks,
    'sub-publish': SubEntries,
    'publishers': Publishers,
    'streams': Publishers,
    'on-and-on': Repeat,
    'open-loop': AtFixedRate,
}
READ = {
    'bodies': Consume,
    'batches': ConsumeBatches,
    'views': ConsumeViews,
    'messages': ConsumeMessages,
}


def make(
    kind: Kind,
    target: Target,
    read: str = 'bodies',
    atomic: bool = False,
    submits: bool = False,
    **options: Any,
) -> Work:
    if not kind.stored:
        way = Atomic if atomic else SubmitAtFixedRate if submits else MAKE[kind.work]
        return way(kind, target, **options)
    if kind.stored.value and MESSAGES[kind.stored.value].app_properties:
        read = 'messages'  # iterating over bodies does not read properties
    return READ[read](kind, target, **options)
