"""Workers of a consumer group that end on SIGTERM, each in its own process."""

import asyncio
import sys
from collections import Counter

import pytest

import rbfly.streams as rbs
from tests.brokers import until
from tests.group_members import may_strand
from tests.sizes import sized
from tests.super_streams import super_stream_of

HANG = 60.0  # seconds; only a bug makes a test wait that long
PARTITIONS = 8
WORKERS = 4

PROGRAM = """
import asyncio, signal, sys
import rbfly.streams as rbs

async def main(uri, stream, group, how):
    async with rbs.streams_client(uri) as client:
        async with client.super_stream(stream).subscribe(
            group=group, commit='auto', offset=rbs.Offset.FIRST
        ) as messages:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, messages.stop)
            await messages.open()
            print('ready', flush=True)
            if how == 'batches':
                async for batch in messages.batches(7):
                    await asyncio.sleep(0)
                    last = rbs.get_message_ctx()
                    print(last.stream, last.stream_offset, *batch, flush=True)
            else:
                async for message in messages.messages():
                    await asyncio.sleep(0)
                    print(message.stream, message.stream_offset, message.body, flush=True)
    print('end', flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


class Worker:
    """A process that prints what it receives.

    :ivar seen: the numbers that it has received.
    :ivar last: offset of the last message, by partition.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.seen: list[int] = []
        self.last: dict[str, int] = {}
        self.ready = False
        self.ended = False
        self.reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, *arguments: str) -> 'Worker':
        command = (sys.executable, '-W', 'error', '-c', PROGRAM, *arguments)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        return cls(process)

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            match line.decode().split():
                case ['ready']:
                    self.ready = True
                case ['end']:
                    self.ended = True
                case [partition, offset, *numbers]:
                    self.seen += map(int, numbers)
                    self.last[partition] = int(offset)
        assert await self.process.wait() == 0

    async def read_more(self) -> None:
        """Wait until the worker receives messages."""
        count = len(self.seen)
        await until(lambda: self.ready and len(self.seen) > count, 'the worker reads', HANG)


@pytest.mark.parametrize('how', ['messages', 'batches'])
async def test_workers_stopped_by_sigterm_lose_and_repeat_nothing(
    how: str, broker_uri: str, client: rbs.StreamsClient, group: str
) -> None:
    count, stopped = 0, False
    workers: list[Worker] = []

    async def load(name: str) -> None:
        nonlocal count
        async with client.super_stream(name).publisher(route=rbs.by_hash(str)) as publisher:
            while not stopped:
                end = count + 40
                await publisher.send_many(range(count, end))
                count = end
                await asyncio.sleep(0.01)

    async def start(name: str) -> None:
        workers.append(await Worker.start(broker_uri, name, group, how))

    one_by_one = await may_strand(client)
    async with super_stream_of(client, PARTITIONS) as name:
        loading = asyncio.create_task(load(name))
        try:
            for _ in range(WORKERS):  # if they joined at the same time, one might get no partition
                await start(name)
                await workers[-1].read_more()
            for i in range(sized(WORKERS, 2 * WORKERS)):  # new ones replace the first ones
                workers[i].process.terminate()
                if one_by_one:
                    async with asyncio.timeout(HANG):
                        await workers[i].reading
                await start(name)
                await workers[-1].read_more()
            stopped = True
            await loading
            await until(
                lambda: sum(len(worker.seen) for worker in workers) >= count, 'all is read', HANG
            )
            for worker in workers[-WORKERS:]:
                worker.process.terminate()
            async with asyncio.timeout(HANG):
                await asyncio.gather(*(worker.reading for worker in workers))
        finally:
            stopped = True
            for worker in workers:
                if worker.process.returncode is None:
                    worker.process.kill()
            await asyncio.wait([loading, *(worker.reading for worker in workers)])
        assert all(worker.ended for worker in workers)
        assert Counter(number for worker in workers for number in worker.seen) == Counter(
            range(count)
        )
        for partition in await client.super_stream(name).partitions():
            last = max(worker.last.get(partition, -1) for worker in workers)
            assert await client.read_offset(partition, group) == last
