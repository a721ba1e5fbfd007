"""Reading and send_many let other tasks and due timers run every few milliseconds.

The tests count messages instead of measuring time: handling a message takes at least a millisecond,
however busy the machine is, so only a few messages may be handled after a timer is due and before
the task that it wakes runs.
"""

import asyncio
import contextvars
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.streams._publish import send_many
from rbfly.streams._waiting import TURN, let_others_run
from rbfly.testing import StreamBroker
from tests.fake_subscription import stream_of_chunks, subscribe_to_fake

pytestmark = pytest.mark.both_loops

COST = 0.001  # minimum seconds per message
COUNT = 60  # messages per chunk
# The messages of one turn, the message started before it, and one because clocks have a resolution.
MOST = int(TURN / COST) + 2


class Handler:
    """A slow handler that awaits nothing."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.late: list[int] = []

    def __call__(self, value: object = None) -> None:
        now = time.monotonic()
        self.begun.append(now)
        while time.monotonic() < now + COST:
            pass

    async def sleep(self) -> None:
        """Sleep repeatedly; record how many messages start between a due timer and its wake-up."""
        while True:
            due = time.monotonic() + COST
            await asyncio.sleep(COST)
            self.late.append(sum(begun > due for begun in self.begun[-COUNT:]))


async def sleeping(handler: Handler, work: Any) -> None:
    """Run a coroutine while another task sleeps repeatedly."""
    sleeper = asyncio.create_task(handler.sleep())
    await asyncio.sleep(0)
    await work
    sleeper.cancel()
    assert len(handler.begun) >= COUNT
    assert len(handler.late) >= COUNT * COST / TURN / 3
    assert max(handler.late) <= MOST


async def read(messages: AsyncIterator[Any], handler: Handler, count: int = COUNT) -> None:
    async for message in messages:
        handler(message)
        if len(handler.begun) >= count:
            break


async def test_every_turn_of_send_many_sends_a_message(
    client: rbs.StreamsClient, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_many, 'TURN', 0.0)  # as if another process kept the processor
    async with client.publisher(stream) as publisher:
        many = asyncio.create_task(publisher.send_many(map(str, ['first', 'last'])))
        await asyncio.sleep(0)
        await publisher.send('between')
        assert await many == 2
    async with client.subscribe(stream, offset=rbs.Offset.FIRST) as messages:
        assert [await anext(messages) for _ in range(3)] == ['first', 'between', 'last']


@pytest.mark.parametrize('kind', ['body', 'context', 'batch'])
async def test_reading_lets_other_tasks_run(kind: str) -> None:
    handler = Handler()
    async with subscribe_to_fake(stream_of_chunks(COUNT)) as messages:
        iterator: dict[str, AsyncIterator[Any]] = {
            'body': messages,
            'context': messages.messages(),
            'batch': messages.batches(1),
        }
        await sleeping(handler, read(iterator[kind], handler))


async def test_reading_lets_other_tasks_run_if_handlers_run_in_other_contexts() -> None:
    """As a handler in an eager task does, which gives the event loop no turn."""
    handler = Handler()

    def handle(message: object) -> None:
        contextvars.copy_context().run(handler, message)

    async with subscribe_to_fake(stream_of_chunks(COUNT)) as messages:

        async def run() -> None:
            async for message in messages:
                handle(message)
                if len(handler.begun) == COUNT:
                    break

        await sleeping(handler, run())


async def test_messages_that_become_slow_are_noticed_within_sixteen() -> None:
    """While messages are cheap, a turn looks at the clock only at every sixteenth message."""
    handler = Handler()
    cheap = 2000

    async def run() -> None:
        seen = 0
        async for _ in messages:
            seen += 1
            if seen > cheap:
                handler()
            if len(handler.begun) == COUNT:
                break

    async with subscribe_to_fake(stream_of_chunks(cheap + COUNT)) as messages:
        sleeper = asyncio.create_task(handler.sleep())
        await run()
        sleeper.cancel()
    assert max(handler.late) <= MOST + 16


async def test_only_the_first_burst_of_slow_messages_is_noticed_late() -> None:
    """After the first burst, a turn looks at the clock at every message."""
    handler = Handler()
    count = 20 * 46

    async def run() -> None:
        seen = 0
        async for _ in messages:
            seen += 1
            if seen % 46 > 31:
                handler()
            if seen == count:
                break

    async with subscribe_to_fake(stream_of_chunks(count)) as messages:
        sleeper = asyncio.create_task(handler.sleep())
        await run()
        sleeper.cancel()
    assert sum(late > MOST for late in handler.late) <= 1


@pytest.mark.parametrize('kind', ['body', 'context', 'batch'])
async def test_filter_that_drops_everything_lets_other_tasks_run(kind: str) -> None:
    handler = Handler()

    def extract(ctx: rbs.MessageCtx) -> str:
        handler()
        return 'wanted' if len(handler.begun) == COUNT else 'not wanted'

    wanted = rbs.MessageFilter(extract, {'wanted'})
    async with subscribe_to_fake(stream_of_chunks(COUNT), filter=wanted) as messages:
        iterator: dict[str, AsyncIterator[Any]] = {
            'body': messages,
            'context': messages.messages(),
            'batch': messages.batches(),
        }
        await sleeping(handler, anext(iterator[kind]))


@pytest.mark.parametrize('kind', ['generator', 'asynchronous generator', 'filter'])
async def test_send_many_lets_other_tasks_run(kind: str) -> None:
    handler = Handler()

    def generate() -> Iterator[int]:
        for i in range(COUNT):
            handler()
            yield i

    async def generate_async() -> AsyncIterator[int]:
        for i in generate():
            yield i

    def extract(ctx: rbs.MessageCtx) -> None:
        handler()

    sources: dict[str, Any] = {
        'generator': generate(),
        'asynchronous generator': generate_async(),
        'filter': list(range(COUNT)),
    }
    async with StreamBroker() as broker, rbs.streams_client(broker.uri) as client:
        broker.create_stream('test')
        by_filter = extract if kind == 'filter' else None
        async with client.publisher('test', filter_extract=by_filter) as publisher:
            await sleeping(handler, publisher.send_many(sources[kind]))
        assert broker.messages('test') == list(range(COUNT))


async def test_tasks_woken_by_due_timers_run_before_the_yielding_task() -> None:
    woken: list[str] = []

    async def sleep() -> None:
        await asyncio.sleep(COST)
        woken.append('asleep')

    async def time_out() -> None:
        try:
            async with asyncio.timeout(COST):
                await asyncio.Event().wait()
        except TimeoutError:
            woken.append('timed out')

    tasks = [asyncio.create_task(item) for item in (sleep(), time_out())]
    await asyncio.sleep(0)
    end = time.monotonic() + 5 * COST
    while time.monotonic() < end:
        pass
    await let_others_run()
    assert sorted(woken) == ['asleep', 'timed out']
    await asyncio.gather(*tasks)
