"""Other processes of a proof, such as a publisher that is independent of the client."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from brokers import wire

from .run import ProofError
from .test_bed import Bed, body

REFERENCE = 'proof'
LAST_ID = 0x05  # the request QueryPublisherSequence

T = TypeVar('T')
SPAWN = get_context('spawn')


def publish_numbers(
    uris: Sequence[str], stream: str, total: int, limit: Any, size: int, window: int
) -> None:
    """Publish all numbers once and in order despite faults, without the client.

    :param limit: its `value` is the number of messages that may be published so far.
    """
    done, named = 0, wire.string(REFERENCE) + wire.string(stream)
    while done < total:
        for uri in uris:
            try:
                with closing(wire.Connection(uri, 'proof-publish', timeout=10)) as connection:
                    connection.declare_publisher(stream, REFERENCE)
                    last = connection.request(LAST_ID, named)
                    done = int.from_bytes(last[:8])
                    for count in portions(done, total, limit, size, window):
                        step = min(count, size)
                        bodies = [body(i) for i in range(done, done + count)]
                        frames = wire.publish_frames(bodies, step, done + 1)
                        connection.publish(frames, step, window)
                        done += count
            except (wire.WireError, OSError):
                time.sleep(0.1)
            if done >= total:
                return


def portions(done: int, total: int, limit: Any, size: int, window: int) -> Iterator[int]:
    """Yield how many messages to publish next: complete frames, or a single smaller frame."""
    while done < total:
        free = min(limit.value, total) - done
        count = min(free - free % size, window) or free
        if count > 0:
            yield count
            done += count
        else:
            time.sleep(0.001)


@asynccontextmanager
async def child(target: Callable[..., None], *args: Any) -> AsyncIterator[None]:
    """Run a function in a separate process, and terminate it at the end."""
    process = SPAWN.Process(target=target, args=args, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        await asyncio.to_thread(process.join)
        process.close()


@asynccontextmanager
async def publishing(
    bed: Bed, stream: str, total: int, size: int = 100, window: int = 2_000
) -> AsyncIterator[Any]:
    """Publish numbers in a separate process, up to the `value` of the yielded limit."""
    limit = SPAWN.Value('q', 0, lock=False)
    async with child(publish_numbers, bed.direct, stream, total, limit, size, window):
        yield limit


def call(answer: Connection, function: Callable[..., Any], *args: Any) -> None:
    try:
        answer.send((function(*args), ''))
    except Exception as ex:
        answer.send((None, f'{type(ex).__name__}: {ex}'))


async def in_child(function: Callable[..., T], *args: Any) -> T:
    """Call a function in a separate process.

    :raises ProofError: the function raised an error, or its process ended.
    """
    answer, sender = SPAWN.Pipe(duplex=False)
    with answer:
        async with child(call, sender, function, *args):
            sender.close()
            try:
                result, error = await asyncio.to_thread(answer.recv)
            except EOFError:
                error = 'a process ended without a result'
    if error:
        raise ProofError(error)
    found: T = result
    return found
