"""A broker, or a proxy before it, that withholds messages from the start."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.streams._consume import watchdog

DELIVER = 8  # key of the frame


class Withholding:
    """Forwards everything between a client and the broker, except chunks while `on` is true."""

    def __init__(self, uri: str) -> None:
        self.on = True
        self.withheld = 0
        self._broker = urlsplit(uri)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Listen; return the URI of the proxy."""
        server = await asyncio.start_server(self._forward, '127.0.0.1', 0)
        port = server.sockets[0].getsockname()[1]
        user = self._broker.netloc.rpartition('@')[0]
        try:
            yield self._broker._replace(netloc=f'{user}@127.0.0.1:{port}').geturl()
        finally:
            server.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker = await asyncio.open_connection(self._broker.hostname, self._broker.port)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._upwards(reader, broker[1]))
                tasks.create_task(self._downwards(broker[0], writer))
        finally:
            writer.close()
            broker[1].close()

    async def _upwards(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.write_eof()

    async def _downwards(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            try:
                size = await reader.readexactly(4)
                frame = await reader.readexactly(int.from_bytes(size))
            except asyncio.IncompleteReadError:
                return
            if self.on and int.from_bytes(frame[:2]) == DELIVER:
                self.withheld += 1
            else:
                writer.write(size + frame)


@pytest.mark.parametrize('group', [None, 'billing'])
async def test_broker_that_delivers_nothing_from_the_start(
    broker: RabbitMQ, stream: str, group: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, 'SILENCE', 0.1)
    monkeypatch.setattr(watchdog, 'SILENCE_LAST', 0.4)
    monkeypatch.setattr(watchdog, 'GRACE', 0.1)
    proxy = Withholding(broker.uri)
    async with (
        proxy.listening() as uri,
        rbs.streams_client(uri, load_balancer=True) as client,
        rbs.streams_client(broker.uri) as other,
    ):
        async with other.publisher(stream) as publisher:
            await publisher.send('x')
        events = client.events()
        async with client.subscribe(
            stream, offset=rbs.Offset.FIRST, group=group, timeout=30
        ) as messages:
            waiting = asyncio.ensure_future(anext(messages))
            async for event in events:
                if isinstance(event, rbs.DeliveryStalled):
                    break
            assert proxy.withheld
            assert 'although the stream has more' in ' '.join(client.health().reasons)
            proxy.on = False
            assert await waiting == 'x'  # also in a group, whose start is the first message
            async for event in events:
                if isinstance(event, rbs.DeliveryResumed):
                    break
            assert client.health()


async def test_stored_offsets_alone_are_no_stall(
    broker: RabbitMQ,
    stream: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The broker counts them, and does not deliver them."""
    monkeypatch.setattr(watchdog, 'SILENCE', 0.01)
    monkeypatch.setattr(watchdog, 'GRACE', 0.01)
    looked = asyncio.Event()
    has_message = watchdog.DeliveryWatchdog._has_message

    async def look(self: watchdog.DeliveryWatchdog) -> bool:
        found = await has_message(self)
        looked.set()
        return found

    monkeypatch.setattr(watchdog.DeliveryWatchdog, '_has_message', look)
    async with rbs.streams_client(broker.uri) as client:
        await client.write_offset(stream, 'someone', 0)
        async with (
            client.publisher(stream) as publisher,
            client.subscribe(stream, offset=rbs.Offset.FIRST) as messages,
        ):
            waiting = asyncio.ensure_future(anext(messages))
            await looked.wait()
            monkeypatch.setattr(watchdog, 'GRACE', 60.0)  # for a broker that delivers 'x' late
            await publisher.send('x')
            assert await waiting == 'x'
    assert 'although the stream has more' not in caplog.text
