"""The web service of the documentation, which uvicorn runs in its own process.

It starts while its broker is down, answers 201 only for orders that are stored and 503 only for
orders that are not, and stops within a second, also during an outage.
"""

import asyncio
import itertools
import os
import random
import re
import signal
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import rbfly.streams as rbs
from brokers import RabbitMQ
from rbfly.amqp import decode_amqp
from rbfly.testing import StreamBroker
from tests.brokers import until
from tests.environments import python_for
from tests.examples import examples
from tests.streams.publish.test_publish import stored

[(NAME, PROGRAM)] = [item for item in examples() if item[0].startswith('recipes/web-service.rst')]

PING = 1.0  # seconds; the timeout of the health check
SLACK = 8.0  # seconds that a busy machine may add; less than any timeout that must not apply
PATIENT = PROGRAM.replace('timeout=2)', 'timeout=15)')  # for orders that must be stored
TASKS = 20  # that place orders


class Service:
    """The service.

    :ivar answers: status of each order, by id.
    """

    def __init__(self, process: Process, log: Path, http: httpx.AsyncClient):
        self.process = process
        self.log = log
        self.http = http
        self.answers: dict[str, int] = {}
        self._numbers = itertools.count()

    async def health(self) -> int:
        response = await self.http.get('/health', timeout=PING + SLACK)
        return response.status_code

    async def healthy(self) -> None:
        """Wait until the service is healthy."""
        async with asyncio.timeout(60):
            while await self.health() != 200:
                pass  # it pings for a second

    async def order(self) -> int:
        number = f'order-{next(self._numbers)}'
        response = await self.http.post('/orders', json={'id': number, 'items': ['book']})
        self.answers[number] = response.status_code
        return response.status_code

    async def stores(self) -> None:
        """Wait until the service stores orders."""
        async with asyncio.timeout(60):
            while await self.order() != 201:
                pass  # it waits for the broker

    async def more(self, status: int, count: int = TASKS) -> None:
        """Wait until more orders have been answered with a status."""
        count += [*self.answers.values()].count(status)
        await until(
            lambda: [*self.answers.values()].count(status) >= count,
            f'{count} orders are answered with {status}',
            timeout=60,
        )

    @asynccontextmanager
    async def orders(self) -> AsyncIterator[None]:
        """Place orders."""
        stopping = False

        async def place() -> None:
            while not stopping:
                await self.order()

        async with asyncio.TaskGroup() as group:
            for _ in range(TASKS):
                group.create_task(place())
            yield
            stopping = True

    async def logged(self, text: str) -> None:
        await until(lambda: text in self.log.read_text(), f'the service logs {text!r}')

    async def stop(self) -> float:
        """Stop the service; return the seconds that it takes."""
        begin = time.monotonic()
        with suppress(ProcessLookupError):
            self.process.terminate()
        await self.process.wait()
        return time.monotonic() - begin

    def check(self, messages: Iterable[str]) -> None:
        """Check the answers against the ids of the messages that are stored."""
        found = {*messages}
        by_status = {
            status: {order for order, answer in self.answers.items() if answer == status}
            for status in (201, 503, 504)
        }
        assert {*self.answers} == set[str]().union(*by_status.values())  # no other status
        assert by_status[201] <= found
        assert not by_status[503] & found
        assert found <= by_status[201] | by_status[504]


@asynccontextmanager
async def serving(folder: Path, uri: str, program: str = PROGRAM) -> AsyncIterator[Service]:
    (folder / 'service.py').write_text(program)
    log = folder / 'log.txt'
    command = ('-X', 'dev', '-m', 'uvicorn', 'service:app', '--port', '0', '--no-access-log')
    with log.open('wb') as file:
        process = await asyncio.create_subprocess_exec(
            python_for(NAME),
            *command,
            cwd=folder,
            env=os.environ | {'RABBITMQ_URI': uri},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=file,
        )
    try:
        async with httpx.AsyncClient(timeout=30) as http:
            service = Service(process, log, http)
            await service.logged('Application startup complete')
            await service.logged('running on')
            found = re.search(r'running on (http://[\d.:]+)', log.read_text())
            assert found
            http.base_url = httpx.URL(found[1])
            yield service
        await service.stop()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        print(log.read_text())
    # uvicorn ends with the signal that has stopped it
    assert process.returncode in (0, -signal.SIGTERM)
    text = log.read_text()
    assert 'Application shutdown complete' in text
    assert 'Traceback' not in text
    assert 'Warning' not in text


def ids(messages: Iterable[Any]) -> list[str]:
    return [message['id'] for message in messages]


async def ids_in(broker: StreamBroker) -> list[str]:
    await until(lambda: broker.connections == 0, 'the broker has read everything')
    return ids(broker.messages('orders'))


async def test_orders_are_stored(broker: RabbitMQ, stream: str, tmp_path: Path) -> None:
    program = PATIENT.replace("'orders'", repr(stream))
    async with serving(tmp_path, broker.uri, program) as service:
        await service.healthy()
        await service.stores()
        for _ in range(3):
            assert await service.order() == 201
        large = {'id': 'large', 'items': ['x' * 2**20]}
        assert (await service.http.post('/orders', json=large)).status_code == 413
        assert (await service.http.post('/orders', json={'id': 5})).status_code == 422
        assert await service.order() == 201
    async with rbs.streams_client(broker.uri) as client:
        bodies = [decode_amqp(data).body for data in await stored(client, stream)]
    service.check(ids(bodies))
    assert bodies[-4:] == [{'id': order, 'items': ['book']} for order in [*service.answers][-4:]]


async def test_starts_before_its_broker(tmp_path: Path) -> None:
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        broker.stop_node(0)
        async with serving(tmp_path, broker.uri) as service:
            assert await service.health() == 503
            assert await service.order() == 503
            broker.start_node(0)
            await service.healthy()
            await service.stores()
        service.check(await ids_in(broker))


async def test_missing_stream(tmp_path: Path) -> None:
    async with StreamBroker() as broker:
        async with serving(tmp_path, broker.uri, PATIENT) as service:
            for _ in range(3):
                assert await service.order() == 503
            await service.logged("stream 'orders': the stream does not exist")
            broker.create_stream('orders')
            assert await service.order() == 201
            broker.delete_stream('orders')
            assert await service.order() in (503, 504)
            broker.create_stream('orders')
            assert await service.order() == 201
        service.answers.pop('order-3')  # in the deleted stream
        service.check(await ids_in(broker))


async def test_refused_user(tmp_path: Path) -> None:
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        broker.fail_authentication()
        async with serving(tmp_path, broker.uri, PATIENT) as service:
            assert await service.health() == 503
            assert await service.order() == 503
            await service.logged('the user or the password is wrong')
            broker.heal()
            assert await service.order() == 201
        service.check(await ids_in(broker))


@pytest.mark.parametrize('name', [None, 'shop'])
async def test_answers_through_cuts_stalls_and_restarts(
    name: str | None, tmp_path: Path, rng: random.Random
) -> None:
    program = PROGRAM.replace('wait=False', f'wait=False, name={name!r}')
    async with StreamBroker(seed=rng.randrange(2**32)) as broker:
        broker.create_stream('orders')
        async with serving(tmp_path, broker.uri, program) as service, service.orders():
            await service.more(201)
            for _ in range(10):
                broker.cut(after=rng.randrange(1, 10_000))
                await service.more(201)
            broker.heal()  # a cut that is still to come
            broker.publish_error(count=5)
            await service.more(503, 1)
            broker.lose_confirms(5)
            await service.more(504, 1)
            broker.stop_node(0)
            await service.more(503)
            assert await service.health() == 503
            broker.start_node(0)
            await service.healthy()
            await service.more(201)
            broker.stall()
            await service.more(504)
            assert await service.health() == 503
            rng.choice([broker.heal, broker.cut])()
            broker.heal()
            await service.healthy()
            await service.more(201)
        found = await ids_in(broker)
    service.check(found)
    if name:
        assert len(found) == len({*found})


async def test_answers_while_rabbitmq_is_killed_paused_and_restarted(
    private_broker: Callable[[], RabbitMQ], private_stream: str, tmp_path: Path
) -> None:
    broker = private_broker()
    program = PROGRAM.replace("'orders'", repr(private_stream))
    async with serving(tmp_path, broker.uri, program) as service, service.orders():
        await service.more(201)
        await asyncio.to_thread(broker.kill_node)
        try:
            await service.more(503)
            assert await service.health() == 503
        finally:
            await asyncio.to_thread(broker.start_node, 0)
        await service.healthy()
        await service.more(201)
        await asyncio.to_thread(broker.pause_node)
        try:
            await service.more(504)
            assert await service.health() == 503
        finally:
            await asyncio.to_thread(broker.resume_node)
        await service.healthy()
        await service.more(201)
        await asyncio.to_thread(broker.restart_node)
        await service.healthy()
        await service.more(201)
    async with rbs.streams_client(broker.uri) as client:
        bodies = [decode_amqp(data).body for data in await stored(client, private_stream)]
    service.check(ids(bodies))


OUTAGES: dict[str, tuple[Callable[[StreamBroker], None], set[int]]] = {
    'none': (lambda broker: None, {201}),
    'stopped': (lambda broker: broker.stop_node(0), {503}),
    'stalled': (lambda broker: broker.stall(), {504}),
    'without confirms': (lambda broker: broker.withhold_confirms(), {504}),
}


@pytest.mark.parametrize('outage', OUTAGES)
async def test_stops_within_a_second(outage: str, tmp_path: Path) -> None:
    begin, statuses = OUTAGES[outage]
    seconds: list[float] = []
    while not seconds or (min(seconds) >= 1 and len(seconds) < 6):  # the machine may be busy
        async with StreamBroker() as broker:
            broker.create_stream('orders')
            async with serving(tmp_path, broker.uri) as service:
                await service.stores()
                begin(broker)
                answers = await asyncio.gather(*(service.order() for _ in range(TASKS)))
                assert {*answers} == statuses
                seconds.append(await service.stop())
            broker.heal()
            service.check(await ids_in(broker))
    assert min(seconds) < 1


@pytest.mark.parametrize('status', [201, 504])
async def test_answers_requests_in_flight_before_it_stops(status: int, tmp_path: Path) -> None:
    async with StreamBroker() as broker:
        broker.create_stream('orders')
        program = PATIENT if status == 201 else PROGRAM
        async with serving(tmp_path, broker.uri, program) as service:
            await service.stores()
            service.answers.clear()
            broker.withhold_confirms()
            async with asyncio.TaskGroup() as group:
                for _ in range(TASKS):
                    group.create_task(service.order())
                await broker.wait_for('orders', TASKS + 1, timeout=60)
                service.process.terminate()
                await service.logged('Shutting down')
                if status == 201:
                    broker.heal()
        assert {*service.answers.values()} == {status}
        assert {*service.answers} < {*await ids_in(broker)}
