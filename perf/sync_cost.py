"""What `rbfly.sync` costs beside the asyncio client: `python -m perf.sync_cost [URI]`.

Without a URI, the in-memory broker runs in a process of its own.  The best of several rounds
counts; the page about `rbfly.sync` shows the ratios.
"""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from secrets import token_hex

import rbfly.streams as rbs
import rbfly.sync

ROUNDS = 3
SENDS = 1_000
MANY = 200_000
CALLERS = 50  # threads or tasks
BODY = b'0123456789'


@contextmanager
def broker(uri: str) -> Iterator[str]:
    if uri:
        yield uri
        return
    command = [sys.executable, '-m', 'rbfly', 'broker', '--port', '0', '--quiet']
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


def best(work: Callable[[], int]) -> float:
    """Return the best rate of several rounds."""
    rates = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        count = work()
        rates.append(count / (time.perf_counter() - begin))
    return max(rates)


def blocking(uri: str, stream: str, full: str) -> dict[str, float]:
    """Measure `rbfly.sync`."""
    with rbfly.sync.streams_client(uri) as client, client.publisher(stream) as publisher:

        def send(count: int = SENDS) -> int:
            for _ in range(count):
                publisher.send(BODY)
            return count

        def concurrent() -> int:
            threads = [threading.Thread(target=send, args=(SENDS // 10,)) for _ in range(CALLERS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return CALLERS * SENDS // 10

        def read(how: Callable[[rbfly.sync.Subscription], int]) -> int:
            with client.subscribe(full, offset=rbs.Offset.FIRST, until='now') as subscription:
                return how(subscription)

        bodies = [BODY] * MANY
        return {
            'send': best(send),
            f'send, {CALLERS} callers': best(concurrent),
            'send_many of a list': best(lambda: publisher.send_many(bodies)),
            'send_many of an iterator': best(lambda: publisher.send_many(iter(bodies))),
            'for': best(lambda: read(lambda messages: sum(1 for _ in messages))),
            'batches': best(lambda: read(lambda messages: sum(map(len, messages.batches())))),
        }


def awaiting(uri: str, stream: str, full: str) -> dict[str, float]:
    """Measure the asyncio client."""
    with asyncio.Runner() as runner:
        client = rbs.streams_client(uri)
        publisher = runner.run(open_publisher(client, stream))

        async def send(count: int = SENDS) -> int:
            for _ in range(count):
                await publisher.send(BODY)
            return count

        async def concurrent() -> int:
            await asyncio.gather(*(send(SENDS // 10) for _ in range(CALLERS)))
            return CALLERS * SENDS // 10

        async def read(batches: bool) -> int:
            count = 0
            async with client.subscribe(full, offset=rbs.Offset.FIRST, until='now') as subscription:
                if batches:
                    async for batch in subscription.batches():
                        count += len(batch)
                else:
                    async for _ in subscription:
                        count += 1
            return count

        bodies = [BODY] * MANY
        found = {
            'send': best(lambda: runner.run(send())),
            f'send, {CALLERS} callers': best(lambda: runner.run(concurrent())),
            'send_many of a list': best(lambda: runner.run(publisher.send_many(bodies))),
            'send_many of an iterator': best(lambda: runner.run(publisher.send_many(iter(bodies)))),
            'for': best(lambda: runner.run(read(False))),
            'batches': best(lambda: runner.run(read(True))),
        }
        runner.run(client.close())
        return found


async def open_publisher(client: rbs.StreamsClient, stream: str) -> rbs.Publisher:
    return await client.publisher(stream)


def main(uri: str) -> None:
    with broker(uri) as address, rbfly.sync.streams_client(address) as client:
        stream, full = f'sync-{token_hex(4)}', f'sync-{token_hex(4)}'
        client.create_stream(stream)
        client.create_stream(full)
        client.publisher(full).send_many([BODY] * MANY)
        found = [measure(address, stream, full) for measure in (blocking, awaiting)]
        client.delete_stream(stream)
        client.delete_stream(full)
    print(f'{"messages per second":26} {"sync":>12} {"asyncio":>12} {"ratio":>6}')
    for name, rate in found[0].items():
        other = found[1][name]
        print(f'{name:26} {rate:12,.0f} {other:12,.0f} {rate / other:6.2f}')


if __name__ == '__main__':
    main(sys.argv[1] if len(sys.argv) > 1 else '')
