"""Stream names have a limit: a broker loops forever if its file system refuses a longer name."""

from collections.abc import Callable
from urllib.parse import quote

import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.streams.error import ArgumentError

VHOST = 'vü/x'


@pytest.mark.parametrize('letter', ['a', 'ż', '😀', '.'])
@pytest.mark.parametrize(('vhost', 'longest'), [('/', 233), (VHOST, 230)])
async def test_create_stream_refuses_a_name_that_is_too_long(
    private_broker: Callable[[], RabbitMQ], vhost: str, longest: int, letter: str
) -> None:
    broker = private_broker()
    if vhost != '/':
        broker.ctl('add_vhost', vhost)
        broker.ctl('set_permissions', '-p', vhost, 'guest', '.*', '.*', '.*')
    uri = broker.uri.rstrip('/') + '/' + quote(vhost, safe='')
    async with rbs.streams_client(uri) as client:
        with pytest.raises(ArgumentError, match=f'{longest + 1} characters.*{longest} in'):
            await client.create_stream(letter * (longest + 1))
        await client.create_stream(letter * longest)
        async with client.publisher(letter * longest) as publisher:
            await publisher.send('stored', timeout=20)
        await client.delete_stream(letter * longest)


async def test_shortest_virtual_host_of_all_uris_sets_the_limit() -> None:
    uris = ['rabbitmq-stream://localhost:1/long', 'rabbitmq-stream://localhost:1/']
    client = rbs.streams_client(uris, connect_timeout=0.1)
    with pytest.raises(ArgumentError, match='233'):
        await client.create_stream('a' * 234)
    with pytest.raises(ConnectionError):
        await client.create_stream('a' * 233)
