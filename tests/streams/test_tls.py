"""TLS, always on both event loops."""

import asyncio
import ssl
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.streams.error import StreamConnectionError, TLSError

pytestmark = pytest.mark.both_loops

CONNECT_TIMEOUT = 120.0  # seconds; retries would last that long
AT_ONCE = 60.0  # on a busy machine; RabbitMQ may accept no connection for 10 s


@pytest.fixture
def context(own_broker: RabbitMQ) -> ssl.SSLContext:
    """A context that trusts the broker's own certificate authority."""
    assert own_broker.ca_file is not None
    return ssl.create_default_context(cafile=str(own_broker.ca_file))


def tls_uri(broker: RabbitMQ) -> str:
    assert broker.tls_uri is not None
    return broker.tls_uri


async def test_publish_and_consume(
    own_broker: RabbitMQ, own_stream: str, context: ssl.SSLContext
) -> None:
    bodies = [b'x' * n for n in (0, 1, 100, 20_000, 300_000)] * 20
    async with rbs.streams_client(tls_uri(own_broker), ssl=context) as client:
        async with client.publisher(own_stream) as publisher:
            await publisher.send('first')
        async with client.publisher(own_stream) as batch:
            for body in bodies:
                batch.batch(body)
            await batch.flush()
        async with client.subscribe(own_stream, offset=rbs.Offset.FIRST) as messages:
            assert await anext(messages) == 'first'
            assert [await anext(messages) for _ in bodies] == bodies


async def test_context_as_second_argument(own_broker: RabbitMQ, context: ssl.SSLContext) -> None:
    async with rbs.streams_client(tls_uri(own_broker), context) as client:
        assert (await client.get_protocol()).is_open


async def fail_to_connect(uri: str, **options: Any) -> TLSError:
    client = rbs.streams_client(uri, connect_timeout=CONNECT_TIMEOUT, **options)
    start = time.monotonic()
    with pytest.raises(TLSError) as caught:
        await client.get_protocol()
    assert time.monotonic() - start < AT_ONCE
    assert isinstance(caught.value, StreamConnectionError)
    await client.disconnect()
    return caught.value


async def test_default_context_verifies_the_certificate(own_broker: RabbitMQ) -> None:
    error = await fail_to_connect(tls_uri(own_broker))
    assert 'certificate verify failed' in str(error).lower()


async def test_unknown_certificate_authority(own_broker: RabbitMQ, tmp_path: Path) -> None:
    other = tmp_path / 'ca.pem'
    trustme.CA().cert_pem.write_to_path(other)
    context = ssl.create_default_context(cafile=str(other))
    error = await fail_to_connect(tls_uri(own_broker), ssl=context)
    assert 'certificate verify failed' in str(error).lower()


async def test_wrong_host_name(own_broker: RabbitMQ, context: ssl.SSLContext) -> None:
    # The broker's certificate is for localhost and 127.0.0.1; a relay listens on 127.0.0.2.
    port = urlsplit(tls_uri(own_broker)).port
    assert port is not None

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection('127.0.0.1', port)
        await asyncio.gather(copy(reader, to_writer), copy(to_reader, writer))

    async with await asyncio.start_server(relay, '127.0.0.2', 0) as server:
        relayed = server.sockets[0].getsockname()[1]
        uri = f'rabbitmq-stream+tls://guest:guest@127.0.0.2:{relayed}/'
        error = await fail_to_connect(uri, ssl=context)
    assert '127.0.0.2' in str(error)
    assert 'certificate is not valid for' in str(error)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_plain_port_with_tls_scheme(own_broker: RabbitMQ, context: ssl.SSLContext) -> None:
    address = urlsplit(own_broker.uri)
    uri = f'rabbitmq-stream+tls://guest:guest@localhost:{address.port}/'
    error = await fail_to_connect(uri, ssl=context)
    assert str(address.port) in str(error)


async def test_tls_port_with_plain_scheme(own_broker: RabbitMQ) -> None:
    port = urlsplit(tls_uri(own_broker)).port
    uri = f'rabbitmq-stream://guest:guest@localhost:{port}/'
    start = time.monotonic()
    with pytest.raises(StreamConnectionError, match=str(port)):
        await rbs.streams_client(uri, connect_timeout=2).get_protocol()
    assert time.monotonic() - start < AT_ONCE
