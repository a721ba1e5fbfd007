"""Tasks that connect while the client disconnects, and logging that raises."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import rbfly.streams as rbs
from rbfly.net import retry
from rbfly.streams.error import StreamConnectionError
from tests import fake_broker as wire
from tests.brokers import until
from tests.fake_broker import FakeBroker, Step
from tests.fake_stream import FakeStream
from tests.inside import connection_of
from tests.net.test_closing import HANG, Held


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, 'BACKOFF_FIRST', 0.001)


async def test_pending_connects_do_not_reopen_a_disconnected_client() -> None:
    held = Held()
    async with FakeBroker(at={Step.OPEN: held}) as fake:
        client = rbs.streams_client(fake.uri)
        tasks = [asyncio.create_task(client.get_protocol()) for _ in range(5)]
        await until(lambda: bool(held.requests), 'the handshake reaches Open')
        await client.disconnect()
        del fake.handlers[Step.OPEN]
        held.answer()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        try:
            assert {type(item) for item in outcomes} == {StreamConnectionError}
            assert all('the client was disconnected' in str(item) for item in outcomes)
            assert len(fake.connections) == 1
        finally:
            await client.disconnect()


@contextmanager
def failing(name: str) -> Iterator[list[logging.LogRecord]]:
    """Let a logger raise, and record what it logs."""
    records: list[logging.LogRecord] = []

    def fail(record: logging.LogRecord) -> bool:
        records.append(record)
        raise ZeroDivisionError('mine')

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    logger = logging.getLogger(name)
    logger.addFilter(fail)
    try:
        yield records
    finally:
        logger.removeFilter(fail)


async def test_publisher_recovers_though_logging_raises() -> None:
    async with (
        FakeBroker() as fake,
        rbs.streams_client(fake.uri, close_timeout=0.05) as client,
        client.publisher('test') as publisher,
    ):
        with failing('rbfly.net') as records:
            lost = connection_of(publisher)
            assert lost is not None
            fake.connections[-1].transport.abort()
            await until(lambda: not lost.is_open, 'the connection is lost')
            await asyncio.wait_for(publisher.send('x'), HANG)
            await until(lambda: bool(records), 'the loss is logged')
    assert wire.PUBLISH in fake.connections[-1].commands()


async def test_subscription_recovers_though_logging_raises() -> None:
    stream = FakeStream()
    async with FakeBroker(on=stream.handlers()) as fake, rbs.streams_client(fake.uri) as client:
        messages = client.subscribe('test', offset=rbs.Offset.FIRST, amqp=False)
        task = asyncio.create_task(anext(messages))
        await until(lambda: bool(stream.readers), 'it is subscribed')
        with failing('rbfly.net') as records:
            fake.connections[-1].transport.abort()
            await until(lambda: len(fake.connections) == 2, 'it reconnects')
            await until(lambda: bool(records), 'the loss is logged')
        stream.append(b'0')
        assert await asyncio.wait_for(task, HANG) == b'0'
