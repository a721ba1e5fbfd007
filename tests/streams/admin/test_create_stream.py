"""The errors of `create_stream` when the broker refuses the request."""

from datetime import timedelta
from typing import Any

import pytest

import rbfly.streams as rbs
from tests import fake_broker as wire
from tests.fake_broker import FakeBroker, refuse


@pytest.mark.parametrize(
    ('first', 'second', 'requested'),
    [
        (
            {},
            {'max_length_bytes': 20 * 2**30, 'max_age': timedelta(days=7)},
            'max-length-bytes=21474836480, max-age=604800s',
        ),
        ({'max_length_bytes': 10**9}, {}, 'none'),
        ({'max_length_bytes': 10**9}, {'max_length_bytes': 10**8}, 'max-length-bytes=100000000'),
    ],
    ids=['none, some', 'some, none', 'others'],
)
async def test_stream_exists_with_other_arguments(
    client: rbs.StreamsClient,
    stream_name: str,
    first: dict[str, Any],
    second: dict[str, Any],
    requested: str,
) -> None:
    await client.create_stream(stream_name, **first)
    with pytest.raises(rbs.ProtocolError) as caught:
        await client.create_stream(stream_name, **second)
    text = str(caught.value)
    assert text.startswith(
        f"stream '{stream_name}' exists with other arguments than requested ({requested}): "
    )
    assert text.endswith('or delete the stream first (code 0x11)')
    assert caught.value.code == rbs.ResponseCode.PRECONDITION_FAILED
    await client.create_stream(stream_name, **first)  # the same arguments
    await client.delete_stream(stream_name)
    await client.create_stream(stream_name, **second)


async def test_refusal_for_another_reason(client: rbs.StreamsClient) -> None:
    with pytest.raises(rbs.ProtocolError, match=r'^stream \'amq\.orders\': ') as caught:
        await client.create_stream('amq.orders')
    assert caught.value.code == rbs.ResponseCode.PRECONDITION_FAILED
    assert 'exists' not in str(caught.value)


async def test_broker_that_fails_after_the_refusal_does_not_replace_the_error() -> None:
    async with (
        FakeBroker(on={wire.CREATE: refuse(0x11), wire.METADATA: wire.SILENT}) as fake,
        rbs.streams_client(fake.uri, request_timeout=0.05) as client,
    ):
        with pytest.raises(rbs.ProtocolError, match='precondition failed') as caught:
            await client.create_stream('orders')
        assert caught.value.code == rbs.ResponseCode.PRECONDITION_FAILED


async def test_only_that_refusal_is_looked_into() -> None:
    async with (
        FakeBroker(on={wire.CREATE: refuse(0x10)}) as fake,
        rbs.streams_client(fake.uri) as client,
    ):
        with pytest.raises(rbs.ProtocolError, match='the user does not have the permission'):
            await client.create_stream('orders')
        assert wire.METADATA not in fake.connection.commands()
