"""The load of `rbfly perf`: publishes and consumes, and measures what passes through."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import rbfly.streams as rbs

from ..time_limits import time_limit
from .histogram import Histogram

STAMP = 8  # bytes: the time of sending, at the start of each body
TICK = 1_000  # how often per second, at most, messages are sent at a rate
LEAD = 50_000_000  # nanoseconds until the first message is due, with a rate
DRAIN = 1_000_000_000  # nanoseconds without a message after which consumers are not waited for
POLL = 0.02  # seconds
PATIENCE = 5.0  # seconds to wait for the last confirms
NANO = 1_000_000_000
COUNTS = 'published', 'confirmed', 'consumed'


@dataclass(frozen=True)
class LoadSettings:
    """What to do; the names are those of the options."""

    streams: Sequence[str]
    super_streams: bool = False
    producers: int = 1
    consumers: int = 1
    size: int = 10
    confirms: int = 10_000
    batch_size: int = 100
    rate: int | None = None
    sub_entry_size: int = 1
    compression: str = 'none'
    offset: rbs.Offset = rbs.Offset.NEXT
    initial_credits: int = 10
    time: float | None = None
    pmessages: int | None = None
    cmessages: int | None = None

    @property
    def batch(self) -> int:
        """Number of messages to send in one turn of the event loop."""
        return min(max(self.batch_size, self.sub_entry_size), self.confirms)


@dataclass
class Totals:
    """Counts of messages and their latencies, since the start or in an interval.

    :ivar seconds: length of the interval.
    """

    seconds: float = 0.0
    published: int = 0
    confirmed: int = 0
    refused: int = 0
    consumed: int = 0
    confirm: Histogram = field(default_factory=Histogram)
    end_to_end: Histogram = field(default_factory=Histogram)

    def add(self, other: Totals) -> None:
        """Add the counts and latencies of an interval."""
        self.seconds += other.seconds
        self.published += other.published
        self.confirmed += other.confirmed
        self.refused += other.refused
        self.consumed += other.consumed
        self.confirm.merge(other.confirm)
        self.end_to_end.merge(other.end_to_end)

    def rate(self, count: int) -> float:
        """Return a count per second."""
        return count / self.seconds if self.seconds > 0 else 0.0


EPOCH = time.time_ns() - time.perf_counter_ns()


def now() -> int:
    """Return nanoseconds since 1970 by a clock that is never set back."""
    return EPOCH + time.perf_counter_ns()


class Load:
    """One run.

    :ivar interval: counts and latencies since :meth:`take` was last called.
    :ivar totals: those before.
    :ivar start: when the first message is due.
    :ivar last_error: why messages were refused, or the run has ended early.
    :ivar failed: the run has ended early.
    :ivar over: nothing is measured any more.
    :ivar last: the interval before the load stopped.
    :ivar left: number of messages that were not confirmed in the end.
    """

    def __init__(self, settings: LoadSettings) -> None:
        self.settings = settings
        self.interval: Totals = Totals()
        self.totals: Totals = Totals()
        self.start: int = 0
        self.stopping: asyncio.Event = asyncio.Event()
        self.last_error: BaseException | None = None
        self.failed: bool = False
        self.over: bool = False
        self.left: int = 0
        self.last: Totals | None = None
        self._rates: dict[str, float] = {}  # until the load stopped
        self._taken_at = 0
        self._producers: list[Producer] = []
        self._consumers: list[Consumer] = []

    @property
    def unconfirmed(self) -> int:
        """Number of messages whose confirms are missing."""
        return sum(item.in_flight for item in self._producers)

    @property
    def elapsed(self) -> float:
        """Seconds since the start; negative before it."""
        return (now() - self.start) / NANO

    def take(self) -> Totals:
        """Begin another interval, and return the one that has ended."""
        found, self.interval = self.interval, Totals()
        at = max(now(), self.start)
        found.seconds = (at - self._taken_at) / NANO
        self._taken_at = at
        self.totals.add(found)
        return found

    def rate(self, name: str) -> float:
        """Return messages per second, without those in flight at the end.

        :param name: `published`, `confirmed` or `consumed`.
        """
        return self._rates.get(name, self.totals.rate(getattr(self.totals, name)))

    def stop(self) -> None:
        """Publish no more messages; :meth:`run` then waits for those that are on their way."""
        self.stopping.set()
        for producer in self._producers:
            producer.wake.set()

    def on_sent(self, count: int) -> None:
        """Count messages that were sent."""
        self.interval.published += count

    def on_settled(self, confirmed: int, refused: int) -> None:
        """Count messages that the broker has confirmed and refused."""
        self.interval.confirmed += confirmed
        self.interval.refused += refused

    def on_refused(self, error: BaseException) -> None:
        """Keep the reason why messages were refused."""
        self.last_error = error

    def on_consumed(self, count: int) -> None:
        """Count messages that were received."""
        self.interval.consumed += count

    def fail(self, error: BaseException) -> None:
        """End the run because of an error."""
        self.last_error = error
        self.failed = True
        self.stop()

    async def run(self, client: rbs.StreamsClient, on_start: Callable[[], None]) -> None:
        """Open all publishers and subscriptions, and run until the end that the settings say, or
        until :meth:`stop`.

        :param on_start: called when all are open.
        :raises RbFlyError: a publisher or a subscription cannot be opened.
        """
        try:
            async with AsyncExitStack() as stack:
                await self._run(client, stack, on_start)
        except rbs.RbFlyError:
            if not self.over:  # else closing has failed, which `last_error` or `left` reports
                raise

    async def _run(
        self, client: rbs.StreamsClient, stack: AsyncExitStack, on_start: Callable[[], None]
    ) -> None:
        consuming = await self._open_consumers(client, stack)
        await self._open_producers(client, stack)
        self.start = self._taken_at = now() + (LEAD if self.settings.rate else 0)
        on_start()
        publishing = [asyncio.ensure_future(item.run()) for item in self._producers]
        pace = Pace(self.settings.rate, self.start, self._producers)
        try:
            await self._until_end(publishing, consuming)
        finally:
            self.stop()
            pace.stop()
            self.last = self.take()
            self._rates = {name: self.rate(name) for name in COUNTS}
            for task in publishing:
                task.cancel()
            await self._settle()
            self.left = self.unconfirmed
            self.over = True
            for task in consuming:
                task.cancel()
            await asyncio.wait([*publishing, *consuming])
            self.totals.add(replace(self.interval, seconds=0.0))

    async def _open_consumers(
        self, client: rbs.StreamsClient, stack: AsyncExitStack
    ) -> list[asyncio.Task[None]]:
        settings = self.settings
        tasks: list[asyncio.Task[None]] = []
        for number in range(settings.consumers):
            stream = settings.streams[number % len(settings.streams)]
            options: dict[str, Any] = {
                'offset': settings.offset,
                'initial_credit': settings.initial_credits,
                'on_decode_error': 'raw',
            }
            subscription: Any
            if settings.super_streams:
                subscription = client.super_stream(stream).subscribe(**options)
            else:
                subscription = client.subscribe(stream, **options)
            await stack.enter_async_context(subscription)
            consumer = Consumer(self, stream, subscription.batches())
            self._consumers.append(consumer)
            tasks.append(asyncio.ensure_future(consumer.run()))
        return tasks

    async def _open_producers(self, client: rbs.StreamsClient, stack: AsyncExitStack) -> None:
        settings = self.settings
        options: dict[str, Any] = {'max_unconfirmed': settings.confirms}
        if settings.sub_entry_size > 1:
            options |= {
                'sub_entry_size': settings.sub_entry_size,
                'compression': settings.compression,
            }
        for number in range(settings.producers):
            stream = settings.streams[number % len(settings.streams)]
            publisher: Any
            if settings.super_streams:
                route = rbs.by_hash(Numbers())
                publisher = client.super_stream(stream).publisher(route=route, **options)
            else:
                publisher = client.publisher(stream, **options)
            opened = await stack.enter_async_context(publisher)
            self._producers.append(Producer(self, stream, opened.send_many))

    async def _until_end(
        self, publishing: Sequence[asyncio.Task[None]], consuming: Sequence[asyncio.Task[None]]
    ) -> None:
        """Wait until the time is up, all messages are published or consumed, or :meth:`stop`."""
        ends = [asyncio.ensure_future(self.stopping.wait())]
        if publishing:
            ends.append(asyncio.ensure_future(all_of(publishing)))
        if self.settings.cmessages is not None and consuming:
            ends.append(asyncio.ensure_future(all_of(consuming)))
        limit = None
        if self.settings.time is not None:
            limit = self.settings.time + (self.start - now()) / NANO
        try:
            await asyncio.wait(ends, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    async def _settle(self) -> None:
        """Wait for the confirms and the messages that are on their way."""
        with suppress(TimeoutError):
            async with time_limit(PATIENCE):
                await asyncio.gather(*(item.confirmed() for item in self._producers))
        confirmed = self.confirmed_by_stream()
        seen, deadline = -1, 0
        while not self.failed and self.settings.cmessages is None:
            consumed = sum(item.consumed for item in self._consumers)
            if consumed != seen:
                seen, deadline = consumed, now() + DRAIN
            behind = any(item.consumed < confirmed[item.stream] for item in self._consumers)
            if not behind or now() > deadline:
                return
            await asyncio.sleep(POLL)

    def confirmed_by_stream(self) -> dict[str, int]:
        """Return the number of confirmed messages by stream."""
        found = dict.fromkeys(self.settings.streams, 0)
        for item in self._producers:
            found[item.stream] += item.sent - item.in_flight
        return found


async def all_of(tasks: Sequence[asyncio.Task[None]]) -> Literal[True]:
    """Wait until all tasks have ended."""
    await asyncio.wait(tasks)
    return True


class Producer:
    """Publishes to one stream.

    Without a rate, it keeps as many messages in flight as `confirms` allows.  With a rate, message
    `i` is due at `start + i / rate`, and its latency counts from then: if the broker or this
    program is late, the latency of all messages that had to wait shows it.

    :ivar sent: number of messages sent.
    :ivar in_flight: number of messages whose confirms are missing.
    :ivar wake: set when there may be something to send.
    """

    def __init__(self, load: Load, stream: str, send_many: Callable[..., Awaitable[int]]) -> None:
        self.stream = stream
        self.sent: int = 0
        self.in_flight: int = 0
        self.wake: asyncio.Event = asyncio.Event()
        self._load = load
        self._settings = load.settings
        self._send_many = send_many
        self._padding = bytes(load.settings.size - STAMP)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Publish until the load stops, or all messages are sent."""
        limit = self._settings.pmessages
        while not self._load.stopping.is_set() and self.sent != limit:
            self.wake.clear()
            while count := self._sendable():
                self._send(count)
            if self.sent != limit:
                await self.wake.wait()
        await self.confirmed()

    async def confirmed(self) -> None:
        """Wait until no message is in flight."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _sendable(self) -> int:
        """Return how many messages to send now, at most one batch."""
        settings = self._settings
        batch = settings.batch
        left = batch if settings.pmessages is None else settings.pmessages - self.sent
        room = settings.confirms - self.in_flight
        if settings.rate is None:
            count = min(batch, left)
            return count if count <= room else 0  # no smaller batches: they cost more
        since = now() - self._load.start
        due = since * settings.rate // NANO + 1 if since >= 0 else 0
        return min(batch, left, room, due - self.sent)

    def _send(self, count: int) -> None:
        rate, padding = self._settings.rate, self._padding
        if rate is None:
            stamps = [now()]
            bodies = [stamps[0].to_bytes(STAMP, 'big') + padding] * count
        else:
            start = self._load.start
            stamps = [start + i * NANO // rate for i in range(self.sent, self.sent + count)]
            bodies = [stamp.to_bytes(STAMP, 'big') + padding for stamp in stamps]
        self.sent += count
        self.in_flight += count
        self._load.on_sent(count)
        task = asyncio.ensure_future(self._confirm(bodies, stamps))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _confirm(self, bodies: Sequence[bytes], stamps: Sequence[int]) -> None:
        load, count = self._load, len(bodies)
        progress = rbs.SendProgress()
        try:
            await self._send_many(bodies, progress=progress)
        except rbs.PublishError as ex:
            load.on_refused(ex)
        except rbs.RbFlyError as ex:
            if not load.over:
                load.fail(ex)
        if not load.over:
            at, confirmed = now(), progress.confirmed
            load.on_settled(confirmed, len(progress.refused))
            latencies = load.interval.confirm
            if len(stamps) == 1:
                latencies.add(at - stamps[0], confirmed)
            elif confirmed == count:
                for stamp in stamps:
                    latencies.add(at - stamp)
            self.in_flight -= count
            self.wake.set()


class Consumer:
    """Reads one stream.

    :ivar consumed: number of messages.
    """

    def __init__(
        self, load: Load, stream: str, batches: AsyncIterator[rbs.MessageBatch[Any]]
    ) -> None:
        self.stream = stream
        self.consumed: int = 0
        self._load = load
        self._batches = batches

    async def run(self) -> None:
        """Read until the number of messages to consume is reached, or without end."""
        limit = self._load.settings.cmessages
        try:
            async for batch in self._batches:
                self._measure(batch, now())
                if limit is not None and self.consumed >= limit:
                    return
        except rbs.RbFlyError as ex:
            self._load.fail(ex)

    def _measure(self, batch: rbs.MessageBatch[Any], at: int) -> None:
        latencies, start = self._load.interval.end_to_end, self._load.start
        self.consumed += len(batch)
        self._load.on_consumed(len(batch))
        last, count = b'', 0
        for body in batch:  # messages of a batch often have the same stamp
            head = body[:STAMP] if isinstance(body, bytes) else b''
            if head == last:
                count += 1
            else:
                add_latency(latencies, last, count, start, at)
                last, count = head, 1
        add_latency(latencies, last, count, start, at)


def add_latency(histogram: Histogram, stamp: bytes, count: int, start: int, at: int) -> None:
    """Count the latency of messages, unless they were sent before the start, or have no stamp."""
    if len(stamp) == STAMP:
        sent = int.from_bytes(stamp, 'big')
        if start <= sent <= at:
            histogram.add(at - sent, count)


class Numbers:
    """Returns another routing key for each message."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, message: object) -> str:
        self._next += 1
        return str(self._next)


class Pace:
    """Wakes producers when messages are due; timers of event loops are late by a millisecond.

    :param rate: messages per second of each producer; None for no pace.
    :param start: when the first message is due.
    """

    def __init__(self, rate: int | None, start: int, producers: Sequence[Producer]) -> None:
        self._loop = asyncio.get_running_loop()
        self._start = start
        self._producers = producers
        self._stopped = threading.Event()
        if rate is not None and producers:
            step = -(-rate // TICK)
            interval = step * NANO // rate
            threading.Thread(target=self._run, args=(interval,), daemon=True).start()

    def _run(self, interval: int) -> None:
        tick = 0
        while not self._stopped.is_set():
            left = self._start + tick * interval - now()
            if left > 0:
                time.sleep(min(left / NANO, 0.5))
                continue
            tick += 1 + -left // interval  # without those that were missed
            with suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for producer in self._producers:
            producer.wake.set()

    def stop(self) -> None:
        """Wake no one any more."""
        self._stopped.set()
