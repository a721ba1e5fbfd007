"""The demonstration: publish and consume messages with RbFly and print the rates."""

import asyncio
import importlib.util
import logging
import secrets
from collections.abc import Callable
from time import perf_counter

import rbfly.streams as rbs
from brokers.output import run_coroutine

from .clients.base import bodies
from .progress import Progress

BATCH = 1_000
CONNECT = 10.0  # seconds to reach the broker


async def publish(client: rbs.StreamsClient, stream: str, messages: list[bytes]) -> float:
    """Publish in batches; return the seconds until all messages are confirmed."""
    with Progress(len(messages), 'publish', 'messages') as progress:
        async with client.publisher(stream) as publisher:
            start = perf_counter()
            for i in range(0, len(messages), BATCH):
                batch = messages[i : i + BATCH]
                for message in batch:
                    publisher.batch(message)
                await publisher.flush()
                progress.step(len(batch))
            return perf_counter() - start


async def consume(client: rbs.StreamsClient, stream: str, messages: list[bytes]) -> float:
    """Consume and check all messages; return the seconds that it took."""
    with Progress(len(messages), 'consume', 'messages') as progress:
        count = 0
        start = perf_counter()
        async for body in client.subscribe(stream, offset=rbs.Offset.FIRST):
            if body != messages[count]:
                raise ValueError(f'message {count} is {body!r}, not {messages[count]!r} as sent')
            count += 1
            if count % BATCH == 0:
                progress.step(BATCH)
            if count == len(messages):
                break
        seconds = perf_counter() - start
        if count % BATCH:
            progress.step(count % BATCH)
        return seconds


async def demo(uri: str, count: int, where: str) -> None:
    messages = bodies(count)
    stream = f'rbfly-demo-{secrets.token_hex(4)}'
    async with rbs.streams_client(uri, connect_timeout=CONNECT) as client:
        if not where:
            found = (await client.get_protocol()).server_properties
            where = f'{found.get("product")} {found.get("version")}'
        await client.create_stream(stream)
        try:
            sent = await publish(client, stream, messages)
            received = await consume(client, stream, messages)
        finally:
            await client.delete_stream(stream)
    print(f'on {where}:')
    for text, seconds in (
        ('published {:,} messages of 10 bytes, all confirmed', sent),
        ('consumed {:,} messages, all equal to those sent', received),
    ):
        print(f'{text.format(count)}, in {seconds:.2f} s: {count / seconds:,.0f}/s')


def run(uri: str, count: int, where: str = '') -> None:
    """Run the demonstration, using uvloop if it is installed.

    :param where: description of the broker; empty to ask the broker for its name and version.
    """
    logging.getLogger('rbfly').setLevel(logging.ERROR)  # the error of the call says it
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if importlib.util.find_spec('uvloop') is not None:
        factory = importlib.import_module('uvloop').new_event_loop
    run_coroutine(demo(uri, count, where), factory)
