"""What `flush` waits for if other calls use the window, and who raises the errors of a batch."""

import asyncio

import pytest

import rbfly.streams as rbs
from rbfly.testing import StreamBroker


async def batch_or_flush(publisher: rbs.Publisher | rbs.SuperStreamPublisher, body: bytes) -> None:
    """Do what the error of `batch` says, until the publisher has the message."""
    for _ in range(100):  # without `flush` waiting, no other task would ever run
        try:
            publisher.batch(body)
        except rbs.WindowTimeout:
            await publisher.flush()
        else:
            return
    pytest.fail('flush does not wait for capacity')


async def test_flush_waits_for_capacity_that_other_messages_use() -> None:
    with StreamBroker() as broker:
        broker.create_stream('orders')
        async with (
            rbs.streams_client(broker.uri) as client,
            client.publisher('orders', max_unconfirmed=1, amqp=False) as publisher,
        ):
            await publisher.submit(b'first')
            await batch_or_flush(publisher, b'second')
        assert broker.messages('orders', raw=True) == [b'first', b'second']


async def test_flush_of_a_super_stream_waits_for_capacity() -> None:
    with StreamBroker() as broker:
        broker.create_super_stream('orders', partitions=2)
        async with (
            rbs.streams_client(broker.uri) as client,
            client.super_stream('orders').publisher(
                route=lambda message, partitions: partitions[1], max_unconfirmed=1, amqp=False
            ) as publisher,
        ):
            await publisher.submit(b'first')
            await batch_or_flush(publisher, b'second')
        assert broker.messages('orders-1', raw=True) == [b'first', b'second']


async def test_close_repeats_no_error_of_a_flush_that_runs() -> None:
    with StreamBroker() as broker:
        broker.create_stream('orders')
        async with rbs.streams_client(broker.uri) as client:
            publisher = await client.publisher('orders')
            broker.publish_error()
            publisher.batch(b'refused')
            flushing = asyncio.create_task(publisher.flush())
            await asyncio.sleep(0)
            await publisher.close()
            with pytest.raises(rbs.PublishError):
                await flushing
