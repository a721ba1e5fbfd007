"""Other processes of a proof, such as a publisher that is independent of the client."""

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from perf import wire

from .run import ProofError
from .test_bed import Bed, body

REFERENCE = 'proof'

T = TypeVar('T')


def publish_numbers(
    uris: Sequence[str], stream: str, total: int, limit: Any, size: int, window: int
) -> None:
    """Publish all numbers once and in order despite faults, without the client.

    :param limit: its `value` is the number of messages that may be published so far.
    """
    done = 0
    while done < total:
        for uri in uris:
            try:
                connection = wire.Connection(uri, 'proof-publish', timeout=10)
                try:
                    connection.declare_publisher(stream, REFERENCE)
                    done = connection.last_id(stream, REFERENCE)
                    for count in portions(done, total, limit, size, window):
                        step = min(count, size)
                        bodies = [body(i) for i in range(done, done + count)]
                        frames = wire.publish_frames(bodies, step, done + 1)
                        connection.publish(frames, step, window)
                        done += count
                finally:
                    connection.close()
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


def call(answer: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        answer.send((True, function(*args)))
    except Exception as ex:
        answer.send((False, f'{type(ex).__name__}: {ex}'))


async def in_child(function: Callable[..., T], *args: Any) -> T:
    """Call a function in a separate process.

    :raises ProofError: the function raised an error, or its process ended.
    """
    context = multiprocessing.get_context('spawn')
    answer, sender = context.Pipe(duplex=False)
    process = context.Process(target=call, args=(sender, function, args), daemon=True)
    process.start()
    sender.close()
    try:
        fine, result = await asyncio.to_thread(answer.recv)
    except EOFError:
        raise ProofError('a process ended without a result') from None
    finally:
        process.terminate()
        await asyncio.to_thread(process.join)
        process.close()
        answer.close()
    if not fine:
        raise ProofError(result)
    found: T = result
    return found


@asynccontextmanager
async def publishing(
    bed: Bed, stream: str, total: int, size: int = 100, window: int = 2_000
) -> AsyncIterator[Any]:
    """Publish numbers in a separate process, up to the `value` of the yielded limit."""
    context = multiprocessing.get_context('spawn')
    limit = context.Value('q', 0, lock=False)
    process = context.Process(
        target=publish_numbers,
        args=(bed.direct, stream, total, limit, size, window),
        daemon=True,
    )
    process.start()
    try:
        yield limit
    finally:
        process.terminate()
        await asyncio.to_thread(process.join)
        process.close()
