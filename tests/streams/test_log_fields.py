"""Lines in the log carry what they say as fields, for a formatter that writes JSON."""

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

import rbfly.streams as rbs
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.inside import session_of

own_clock = pytest.mark.own_clock


class JSONLines(logging.Handler):
    """Collects lines as a JSON formatter writes them: all attributes that are not of `logging`."""

    def __init__(self) -> None:
        super().__init__()
        self.usual = set(vars(logging.makeLogRecord({}))) | {'message', 'asctime', 'taskName'}
        self.found: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = {key: value for key, value in vars(record).items() if key not in self.usual}
        text = json.dumps({'text': record.getMessage()} | fields)  # all of them are JSON
        self.found.append(json.loads(text))

    def one(self, event: str) -> dict[str, Any]:
        """Return the fields of the line of an event."""
        (found,) = [item for item in self.found if item['rbfly_event'] == event]
        return found


@pytest.fixture
def lines() -> Iterator[JSONLines]:
    logger, handler = logging.getLogger('rbfly'), JSONLines()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    for item in handler.found:
        assert item['rbfly_client'] == 'shop'
        assert all(key == 'text' or key.startswith('rbfly_') for key in item)


@own_clock
async def test_outage(lines: JSONLines) -> None:
    async with (
        StreamBroker() as broker,
        rbs.streams_client(broker.uri, connection_name='shop') as client,
    ):
        broker.create_stream('orders')
        async with client.publisher('orders', name='till') as publisher:
            broker.refuse()
            broker.cut()
            await asyncio.sleep(5)
            broker.heal()
            await publisher.send('x')
            creating = asyncio.create_task(client.create_stream('refunds'))
            await creating
            await asyncio.sleep(1)
    lost = lines.one('lost')
    assert (
        lost.items()
        >= {
            'rbfly_kind': 'publisher',
            'rbfly_stream': 'orders',
            'rbfly_name': 'till',
            'rbfly_count': 1,
        }.items()
    )
    assert lost['text'].endswith(lost['rbfly_error'])
    back = lines.one('reconnected')
    assert f'reconnected to {back["rbfly_node"]} after ' in back['text']
    assert 5 <= back['rbfly_seconds'] <= 15
    states = [item['rbfly_state'] for item in lines.found if item['rbfly_event'] == 'state']
    assert states[:2] == ['opening', 'open']


@own_clock
async def test_call_that_waits(lines: JSONLines) -> None:
    async with (
        StreamBroker() as broker,
        rbs.streams_client(broker.uri, connection_name='shop') as client,
    ):
        broker.refuse()
        creating = asyncio.create_task(client.create_stream('orders'))
        await asyncio.sleep(0.5)
        broker.heal()
        await creating
    waiting = lines.one('call_waiting')
    assert 'connection lost' in waiting['rbfly_error']


@own_clock
async def test_silence(lines: JSONLines) -> None:
    async with (
        StreamBroker() as broker,
        rbs.streams_client(broker.uri, connection_name='shop') as client,
    ):
        broker.create_stream('orders')
        async with client.publisher('orders') as publisher:
            broker.withhold_confirms()
            sending = asyncio.create_task(publisher.send('x'))
            await asyncio.sleep(60)
            broker.heal()
            await sending
            await asyncio.sleep(1)
    overdue = lines.one('confirms_overdue')
    assert overdue['rbfly_messages'] == overdue['rbfly_count'] == 1
    assert overdue['rbfly_broker'] == 'answers'
    assert overdue['rbfly_seconds'] == 30.0
    assert lines.one('confirms_resumed')['rbfly_stream'] == 'orders'


async def test_groups_and_partitions(lines: JSONLines) -> None:
    async with (
        StreamBroker() as broker,
        rbs.streams_client(broker.uri, connection_name='shop') as client,
    ):
        broker.create_super_stream('parts', partitions=1)
        async with client.super_stream('parts').subscribe(group='billing') as member:
            await until(lambda: bool(session_of(member).active), 'it is active')
    for event in ('activated', 'deactivated'):
        found = lines.one(event)
        assert (found['rbfly_stream'], found['rbfly_group']) == ('parts-0', 'billing')


async def test_offset_gap(lines: JSONLines) -> None:
    async with (
        StreamBroker() as broker,
        rbs.streams_client(broker.uri, connection_name='shop') as client,
    ):
        broker.create_stream('orders')
        broker.publish('orders', 'x')
        async with client.subscribe('orders', offset=rbs.Offset.offset(7)):
            pass
    found = lines.one('offset_gap')
    assert (found['rbfly_stream'], found['rbfly_offset'], found['rbfly_first']) == ('orders', 7, 1)
