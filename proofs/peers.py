"""Helpers of proofs that are independent of the client: a tap, and other processes."""

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from brokers.proxy import Direction, Proxy
from perf import wire

from .run import ProofError
from .site import WIDTH, Site, body

__all__ = ['Tap', 'in_child', 'publishing']

REFERENCE = 'proof'

T = TypeVar('T')


class Tap:
    """Reads the published and confirmed messages that pass a proxy.

    :ivar confirmed: whether the broker has confirmed a message, by its number.
    :ivar published: number of published messages.
    :ivar reused: publishing ids not above the previous one, with the numbers of their messages.
    """

    def __init__(self, proxy: Proxy, total: int) -> None:
        self.confirmed = bytearray(total)
        self.published = 0
        self.reused: list[tuple[int, int]] = []
        self._rest: dict[tuple[int, Direction], bytes] = {}
        self._numbers: dict[tuple[int, int], dict[int, int]] = {}
        self._last: dict[tuple[int, int], int] = {}
        proxy.watch = self

    def __call__(self, link: int, direction: Direction, data: bytes) -> None:
        data = self._rest.get((link, direction), b'') + data
        pos = 0
        while len(data) - pos >= wire.HEAD.size:
            size, key, _ = wire.HEAD.unpack_from(data, pos)
            end = pos + 4 + size
            if end > len(data):
                break
            if key == wire.PUBLISH and direction == 'up':
                self._publish(link, data, pos)
            elif key == wire.PUBLISH_CONFIRM and direction == 'down':
                self._confirm(link, data, pos)
            pos = end
        self._rest[link, direction] = data[pos:]

    def _publish(self, link: int, data: bytes, pos: int) -> None:
        *_, publisher, count = wire.PUBLISH_HEAD.unpack_from(data, pos)
        key = link, publisher
        numbers = self._numbers.setdefault(key, {})
        last = self._last.get(key, -1)
        pos += wire.PUBLISH_HEAD.size
        for _ in range(count):
            publishing_id, size = wire.ENTRY_HEAD.unpack_from(data, pos)
            pos += wire.ENTRY_HEAD.size + size
            number = int(data[pos - WIDTH : pos])
            if publishing_id <= last:
                self.reused.append((publishing_id, number))
            last = publishing_id
            numbers[publishing_id] = number
        self._last[key] = last
        self.published += count

    def _confirm(self, link: int, data: bytes, pos: int) -> None:
        *_, publisher, count = wire.CONFIRM.unpack_from(data, pos)
        numbers = self._numbers[link, publisher]
        pos += wire.CONFIRM.size
        for i in range(count):
            number = numbers.pop(int.from_bytes(data[pos + 8 * i : pos + 8 * i + 8], 'big'), None)
            if number is not None:
                self.confirmed[number] = 1


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
        raise ProofError('the process of a lane ended without a result') from None
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
    site: Site, stream: str, total: int, size: int = 100, window: int = 2_000
) -> AsyncIterator[Any]:
    """Publish numbers in a separate process, up to the `value` of the yielded limit."""
    context = multiprocessing.get_context('spawn')
    limit = context.Value('q', 0, lock=False)
    process = context.Process(
        target=publish_numbers,
        args=(site.direct, stream, total, limit, size, window),
        daemon=True,
    )
    process.start()
    try:
        yield limit
    finally:
        process.terminate()
        await asyncio.to_thread(process.join)
        process.close()
