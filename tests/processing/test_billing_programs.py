"""A program that works on many messages at once, with `process` and written by hand."""

import asyncio
import contextlib
from pathlib import Path

import pytest

import rbfly.streams as rbs
from tests.brokers import until
from tests.super_streams import read_partition
from tests.user_programs import FOLDER, HANG, end, started

GUIDES = Path(__file__).parents[2] / 'doc' / 'guides'
COUNT = 3000
FAILING = 100  # every so often, an order has no id


def bills(folder: Path) -> set[int]:
    """The numbers of the orders that were billed."""
    return {int(line) for path in folder.iterdir() for line in path.read_text().splitlines()}


def all_have_billed(folder: Path) -> bool:
    return all(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize('program', ['billing_before', 'billing_after'])
async def test_every_order_is_billed(
    client: rbs.StreamsClient,
    broker_uri: str,
    super_stream: str,
    dead: str,
    tmp_path: Path,
    program: str,
) -> None:
    """Also if a process is killed; orders that cannot be billed are in the other stream."""
    arguments = (program, broker_uri, super_stream, dead)
    orders = client.super_stream(super_stream)
    total = 0

    async def publish(publisher: rbs.SuperStreamPublisher, count: int) -> None:
        nonlocal total
        for i in range(total, total + count):
            order = {'id': i} if i % FAILING else {'number': i}
            await publisher.submit(order | {'customer': f'customer {i % 40}'})
        total += count

    async with contextlib.AsyncExitStack() as stack:
        processes = []
        route = rbs.by_hash(lambda order: order['customer'])
        async with orders.publisher(route=route) as publisher:
            await publish(publisher, COUNT // 2)
            # One after the other: of members that join at once, RabbitMQ may give one no partition;
            # and 4.0 may choose nobody if a member is killed while it hands over to a new one.
            for number in range(3):
                output = tmp_path / str(number)
                processes.append(
                    await stack.enter_async_context(started(*arguments, output=output))
                )
                async with asyncio.timeout(HANG):
                    while not all_have_billed(tmp_path):
                        await publish(publisher, FAILING)
                        await asyncio.sleep(0.1)
            first, second, third = processes
            first.kill()
            await publish(publisher, COUNT // 2)
            await publisher.flush()
        whole = {i for i in range(total) if i % FAILING}
        await until(lambda: bills(tmp_path) == whole, 'all orders are billed', HANG)
        failed = set(range(0, total, FAILING))
        async with asyncio.timeout(HANG):
            found = set[int]()
            while found != failed:
                await asyncio.sleep(0.1)
                found = {item['number'] for item in await read_partition(client, dead)}
        await end(second)
        await end(third)
    lag = await orders.lag('billing')
    assert set(lag.values()) == {0}


@pytest.mark.parametrize(
    ('page', 'program'),
    [('processing', 'billing'), ('pipes', 'invoices'), ('sync', 'shop'), ('types', 'typed')],
)
def test_page_says_how_long_the_programs_are(page: str, program: str) -> None:
    text = (GUIDES / f'{page}.rst').read_text()
    for name in (f'{program}_before', f'{program}_after'):
        lines = (FOLDER / f'{name}.py').read_text().splitlines()
        count = sum(bool(line.strip()) and not line.lstrip().startswith('#') for line in lines)
        assert name in text
        assert f' {count}' in text
