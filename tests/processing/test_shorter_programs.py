"""Programs that use a pipe, types or `rbfly.sync`, and the same ones written by hand."""

import asyncio
import contextlib
import json
from collections import Counter
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

import rbfly.streams as rbs
from tests.super_streams import read_partition
from tests.user_programs import HANG, run, started

COUNT = 3000


@pytest.mark.parametrize('program', ['invoices_before', 'invoices_after'])
async def test_every_order_has_its_invoice(
    client: rbs.StreamsClient,
    broker_uri: str,
    stream: str,
    dead: str,
    tmp_path: Path,
    program: str,
) -> None:
    """Also if a process is killed, and with `pipe` no order has two."""
    async with client.publisher(stream) as publisher:
        await publisher.send_many({'id': i, 'price': i} for i in range(COUNT))
    arguments = [broker_uri, stream, dead]
    if program == 'invoices_before':
        arguments.append(str(tmp_path / 'seen.db'))
    async with started(program, *arguments) as process:
        async with client.subscribe(dead, offset=rbs.Offset.FIRST) as invoices:
            await anext(invoices)
        with contextlib.suppress(ProcessLookupError):  # it may have invoiced all orders by now
            process.kill()
    await run(program, *arguments)
    found = Counter(item['order'] for item in await read_partition(client, dead))
    assert found.keys() == set(range(COUNT))
    if program == 'invoices_after':
        assert set(found.values()) == {1}


def order(port: int, number: int) -> int:
    """Send an order to the shop; return the status."""
    connection = HTTPConnection('127.0.0.1', port, timeout=HANG)
    try:
        connection.request('POST', '/', json.dumps({'id': number}))
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize('program', ['shop_before', 'shop_after'])
async def test_shop_stores_orders_of_many_threads(
    client: rbs.StreamsClient, broker_uri: str, stream: str, program: str
) -> None:
    async with started(program, broker_uri, stream) as process:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        calls = (asyncio.to_thread(order, port, i) for i in range(50))
        assert set(await asyncio.gather(*calls)) == {201}
    found = [item['id'] for item in await read_partition(client, stream)]
    assert sorted(found) == list(range(50))


@pytest.mark.parametrize('program', ['typed_before', 'typed_after'])
async def test_messages_that_are_not_orders_are_reported(
    client: rbs.StreamsClient, broker_uri: str, stream: str, program: str
) -> None:
    bodies: list[Any] = [
        {'id': 1, 'items': [{'price': 5, 'count': 2}, {'price': 1}]},
        {'id': '2'},
        {'id': 3},
        {'id': 4, 'items': [{'count': 2}]},
        'order 5',
        {'items': []},
        {'id': 7, 'items': [{'price': 7}], 'note': 'a new field'},
    ]
    async with client.publisher(stream) as publisher:
        await publisher.send_many(bodies)
    assert await run(program, broker_uri, stream) == [
        '1 11',
        'offset 1 is not an order',
        '3 0',
        'offset 3 is not an order',
        'offset 4 is not an order',
        'offset 5 is not an order',
        '7 7',
    ]
