"""Bodies in a format of the program: a pair of functions encodes and decodes them."""

import json
import zlib
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.amqp import decode_amqp
from rbfly.error import (
    AMQPEncoderTypeError,
    AMQPEncoderValueError,
    ArgumentError,
    ArgumentTypeError,
)

HANG = 20.0  # seconds; only a safeguard
FROM_START: Any = {'offset': rbs.Offset.FIRST, 'timeout': HANG, 'until': 'now'}
BODIES: list[Any] = [{'id': 1}, [1, 2], 'text', None, 5]


def to_json(body: Any) -> bytes:
    return json.dumps(body).encode()


JSON: rbs.Codec[Any] = rbs.Codec(to_json, json.loads)
ZLIB: rbs.Codec[bytes] = rbs.Codec(zlib.compress, zlib.decompress)


async def read(client: rbs.StreamsClient, stream: str, **arguments: Any) -> list[Any]:
    async with client.subscribe(stream, **FROM_START, **arguments) as messages:
        return [body async for body in messages]


@pytest.mark.parametrize('settings', [{}, {'sub_entry_size': 10}, {'name': 'orders'}])
async def test_every_way_to_send(client: rbs.StreamsClient, stream: str, settings: Any) -> None:
    async with client.publisher(stream, codec=JSON, **settings) as publisher:
        await publisher.send(BODIES[0])
        await (await publisher.submit(BODIES[1]))
        await publisher.send_many(BODIES[2:4])
        publisher.batch(BODIES[4])
        await publisher.flush()
    assert await read(client, stream, codec=JSON) == BODIES
    assert await read(client, stream) == [to_json(body) for body in BODIES]


async def test_short_bytes_are_encoded_too(client: rbs.StreamsClient, stream: str) -> None:
    bodies = [b'x' * n for n in range(20)]
    async with client.publisher(stream, codec=ZLIB) as publisher:
        await publisher.send_many(bodies)
        for body in bodies:
            publisher.batch(body)
        await publisher.flush()
        await publisher.send(b'last')
    assert await read(client, stream, codec=ZLIB) == [*bodies, *bodies, b'last']
    assert zlib.decompress((await read(client, stream))[0]) == b''


async def test_the_bytes_are_a_data_section_with_the_properties_of_the_message(
    client: rbs.StreamsClient, stream: str
) -> None:
    properties = rbs.Message('', app_properties={'a': 1}, annotations={'b': 2})
    properties.body = {'id': 1}
    async with client.publisher(stream, codec=JSON) as publisher:
        await publisher.send(properties)
    assert properties.body == {'id': 1}
    (raw,) = await read(client, stream, amqp=False)
    assert bytes(decode_amqp(raw).body_view()) == b'{"id": 1}'
    async with client.subscribe(stream, codec=JSON, **FROM_START) as messages:
        async for message in messages.messages():
            assert message.body == {'id': 1}
            assert message.app_properties == {'a': 1}
            async with client.publisher(stream, codec=JSON) as publisher:
                message.body['id'] = 2
                await publisher.send(message)
    async with client.subscribe(stream, codec=JSON, offset=rbs.Offset.offset(1)) as messages:
        changed = await anext(messages.messages())
    assert (changed.body, changed.app_properties) == ({'id': 2}, {'a': 1})


async def test_filter_values_and_routes_are_those_of_the_body(
    client: rbs.StreamsClient, stream: str, super_stream: str
) -> None:
    async with client.publisher(
        stream, codec=JSON, filter_extract=lambda message: message.body['region']
    ) as publisher:
        await publisher.send_many([{'region': 'eu'}, {'region': 'us'}])
    chosen = rbs.MessageFilter(lambda message: message.body['region'], {'us'})
    assert await read(client, stream, codec=JSON, filter=chosen) == [{'region': 'us'}]
    orders = client.super_stream(super_stream)
    route = rbs.by_hash(lambda order: order['region'])
    async with orders.publisher(route=route, codec=JSON) as regions:
        await regions.send_many([{'region': 'eu'}, {'region': 'us'}])
    async with orders.subscribe(codec=JSON, **FROM_START) as found:
        assert {order['region'] async for order in found} == {'eu', 'us'}


async def test_a_body_that_cannot_be_encoded_is_not_sent(
    client: rbs.StreamsClient, stream: str
) -> None:
    async with client.publisher(stream, codec=JSON) as publisher:
        with pytest.raises(
            AMQPEncoderValueError, match=r'cannot encode \{1\}: TypeError: '
        ) as caught:
            await publisher.send({1})  # type: ignore[arg-type]
        assert isinstance(caught.value.__cause__, TypeError)
        with pytest.raises(AMQPEncoderValueError):
            publisher.batch({1})  # type: ignore[arg-type]
        await publisher.send('good')
    text: Any = rbs.Codec(json.dumps, json.loads)  # type: ignore[arg-type]
    async with client.publisher(stream, codec=text) as publisher:
        with pytest.raises(AMQPEncoderTypeError, match='must return bytes for a body, not str'):
            await publisher.send('bad')
    assert await read(client, stream, codec=JSON) == ['good']


async def test_a_body_that_cannot_be_decoded(client: rbs.StreamsClient, stream: str) -> None:
    async with client.publisher(stream) as publisher:
        await publisher.send_many([b'{', {'id': 1}, b'2'])
    async with client.subscribe(stream, codec=JSON, **FROM_START) as messages:
        with pytest.raises(rbs.AMQPDecoderError, match=r'^\$: JSONDecodeError: ') as caught:
            await anext(messages)
        assert isinstance(caught.value.__cause__, json.JSONDecodeError)
        assert (caught.value.offset, caught.value.stream) == (0, stream)
        with pytest.raises(rbs.AMQPDecoderError, match='expected a data section for the codec'):
            await anext(messages)
        assert await anext(messages) == 2
    assert await read(client, stream, codec=JSON, on_decode_error='skip') == [2]


async def test_wrong_arguments(client: rbs.StreamsClient, stream: str) -> None:
    with pytest.raises(ArgumentTypeError, match='encode must be a function, not str'):
        rbs.Codec('utf-8', json.loads)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match='omit amqp=False'):
        client.publisher(stream, codec=JSON, amqp=False)
    with pytest.raises(ArgumentError, match='PublisherBin sends bytes'):
        client.publisher(stream, codec=JSON, cls=rbs.PublisherBin)
