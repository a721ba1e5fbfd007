"""Lanes that poll, and lanes that work between messages: the broker stores each message once."""

import socket
import threading
from typing import Any, cast

import pytest

import rbfly.streams as rbs
from perf import clients, lanes, worker
from perf.clients.base import Target
from perf.clients.polling_socket import PollingSocket
from perf.store import RabbitStore

COUNT = 1_000
LANES = [
    f'{library}-polling-{kind}'
    for library, kinds in {
        'raw-socket': ('single', 'batch'),
        'bare-uvloop': ('single', 'batch'),
        'rbfly': ('single', 'batch', 'window', 'tasks-100', 'far-batch-1', 'gaps-20'),
    }.items()
    for kind in kinds
]


async def publish(name: str, target: Target) -> None:
    """Run two rounds of a lane."""
    work = clients.make(lanes.find(name), target)
    await work.open()
    try:
        for _ in range(2):
            await work.prepare(COUNT)
            assert (await worker.measure(work))['count'] == COUNT
    finally:
        await work.close()


@pytest.mark.parametrize('name', [*LANES, 'rbfly-gaps-20'])
async def test_lane_publishes_each_message_once(
    name: str, store: RabbitStore, stream_name: str, broker_uri: str
) -> None:
    await publish(name, Target(broker_uri, stream_name))
    assert store.count(stream_name) == 2 * COUNT


@pytest.mark.parametrize(
    ('name', 'expected'), [('single', {}), ('polling-single', {'busy_poll': 0.0005})]
)
async def test_only_the_lane_that_polls_sets_the_option(
    name: str,
    expected: dict[str, Any],
    store: RabbitStore,
    stream_name: str,
    broker_uri: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[dict[str, Any]] = []
    original = rbs.streams_client

    def client(uri: str, **options: Any) -> Any:
        given.append(options)
        return original(uri, **options)

    monkeypatch.setattr(rbs, 'streams_client', client)
    await publish(f'rbfly-{name}', Target(broker_uri, stream_name))
    assert given == [expected]


def test_socket_asks_for_data_until_it_arrives() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        asked = 0

        class Socket:
            """Delivers data to be received at the third request."""

            setblocking, close = ours.setblocking, ours.close

            def recv(self, size: int) -> bytes:
                nonlocal asked
                asked += 1
                if asked == 3:
                    theirs.send(b'confirm')
                return ours.recv(size)

        assert PollingSocket(cast(socket.socket, Socket())).recv(65_536) == b'confirm'
        assert asked == 3


def test_socket_sends_all_however_full_its_buffer_is() -> None:
    ours, theirs = socket.socketpair()
    data = bytes(range(256)) * 8_192
    with ours, theirs:
        received = bytearray()

        def receive() -> None:
            while len(received) < len(data):
                received.extend(theirs.recv(65_536))

        thread = threading.Thread(target=receive)
        thread.start()
        PollingSocket(ours).sendall(data)
        thread.join()
    assert received == data
