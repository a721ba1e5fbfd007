"""Bills the orders of a super stream, many at a time: without `process`."""

import asyncio
import signal
import sys
from collections import deque
from datetime import UTC, datetime
from typing import Any

import rbfly.streams as rbs

WORKERS = 16
PENDING = 10_000  # messages of a partition from the lowest unfinished one on
DELAYS = (0.1, 0.1)
INTERVAL = 5.0


async def bill(order: dict[str, str]) -> None:
    await asyncio.sleep(0.001)  # such as a request to another service
    print(order['id'], flush=True)


class Partition:
    """The messages of a partition that this member works on."""

    def __init__(self) -> None:
        self.offsets: deque[int] = deque()  # from the lowest unfinished one on
        self.done: set[int] = set()  # those of them that are finished
        self.last: int | None = None  # below which all messages are finished
        self.stored: int | None = None
        self.queues: dict[str, deque[rbs.MessageCtx]] = {}  # by key
        self.tasks: set[asyncio.Task[None]] = set()
        self.closed = False
        self.room = asyncio.Event()

    def finish(self, offset: int) -> None:
        self.done.add(offset)
        while self.offsets and self.offsets[0] in self.done:
            self.last = self.offsets.popleft()
            self.done.remove(self.last)
        self.room.set()


class Billing:
    def __init__(self, letters: rbs.Publisher) -> None:
        self.letters = letters
        self.partitions: dict[str, Partition] = {}
        self.workers = asyncio.Semaphore(WORKERS)
        self.messages: Any = None
        self.error: BaseException | None = None

    async def read(self) -> None:
        async for message in self.messages.messages():
            partition = self.partitions.setdefault(str(message.stream), Partition())
            while len(partition.offsets) >= PENDING and not partition.closed:
                partition.room.clear()
                await partition.room.wait()
            if partition.closed:
                continue
            partition.offsets.append(message.stream_offset)
            try:
                key = message.body['customer']
            except (KeyError, TypeError):
                key = ''
            if key in partition.queues:
                partition.queues[key].append(message)
                continue
            partition.queues[key] = deque([message])
            task = asyncio.create_task(self.run(partition, key))
            partition.tasks.add(task)
            task.add_done_callback(partition.tasks.discard)
        if self.error is not None:
            raise self.error

    async def run(self, partition: Partition, key: str) -> None:
        """Work on the messages with a key, in order."""
        queue = partition.queues[key]
        while queue and not partition.closed:
            message = queue.popleft()
            try:
                await self.attempt(message)
            except Exception as ex:
                self.error = ex
                self.messages.stop()
                return
            partition.finish(message.stream_offset)
        del partition.queues[key]

    async def attempt(self, message: rbs.MessageCtx) -> None:
        for tries, delay in enumerate((*DELAYS, None), 1):
            try:
                async with self.workers:
                    await bill(message.body)
                return
            except Exception as ex:
                if delay is None:
                    await self.publish(message, ex, tries)
                else:
                    await asyncio.sleep(delay)

    async def publish(
        self, message: rbs.MessageCtx, error: Exception, tries: int
    ) -> None:
        facts = {
            'dead-letter-reason': f'{type(error).__name__}: {error}'[:1024],
            'dead-letter-stream': message.stream,
            'dead-letter-offset': message.stream_offset,
            'dead-letter-tries': tries,
            'dead-letter-time': datetime.now(UTC),
        }
        properties = {**message.app_properties, **facts}
        await self.letters.send(rbs.MessageCtx(message.body, app_properties=properties))

    async def revoke(self, name: str) -> None:
        """Finish the messages in work, and store the offset."""
        partition = self.partitions.pop(name, None)
        if partition is None:
            return
        partition.closed = True
        partition.room.set()
        if partition.tasks:
            _, late = await asyncio.wait(partition.tasks, timeout=24)
            for task in late:
                task.cancel()
        await self.store(name, partition)

    async def store(self, name: str, partition: Partition) -> None:
        offset = partition.last
        if offset is None or offset == partition.stored:
            return
        try:
            await self.messages.commit({name: offset})
            partition.stored = offset
        except rbs.OffsetNotStored as error:  # the connection was lost
            print(error)

    async def store_often(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            for name, partition in list(self.partitions.items()):
                await self.store(name, partition)

    async def watch(self, events: rbs.Events) -> None:
        """Forget the messages of a partition whose connection was lost."""
        async for event in events:
            if not isinstance(event, rbs.Deactivated) or not event.lost:
                continue
            partition = self.partitions.pop(event.stream, None)
            if partition is not None:
                partition.closed = True
                partition.room.set()
                for task in partition.tasks:
                    task.cancel()


async def main(uri: str, super_stream: str, failed: str) -> None:
    async with rbs.streams_client(uri) as client, client.publisher(failed) as letters:
        billing = Billing(letters)
        messages = client.super_stream(super_stream).subscribe(
            group=rbs.Group('billing', on_revoke=billing.revoke),
            commit='manual',
        )
        billing.messages = messages
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, messages.stop)
        async with asyncio.TaskGroup() as tasks:
            others = [
                tasks.create_task(billing.store_often()),
                tasks.create_task(billing.watch(client.events())),
            ]
            await billing.read()
            for task in others:
                task.cancel()


if __name__ == '__main__':
    asyncio.run(main(*sys.argv[1:]))
