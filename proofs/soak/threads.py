"""An activity of a soak that also uses its client from a second thread."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import rbfly.streams as rbs
from rbfly.error import EventLoopError

from ..history import CONFIRMED
from ..test_bed import body
from .activity import CONFIRM, SHARE, Activity

PAUSE = 0.002  # seconds between two rounds of wrong calls
ANSWER = 1.0  # timeout of calls that the second thread makes
CHUNK = 200  # messages per chunk, so that most of them are buffered in the subscription
STRANGE = body(10**9)  # body of every message from the second thread


class Threads(Activity):
    """Every call from the second thread raises EventLoopError and disturbs nothing."""

    async def begin(self, stack: AsyncExitStack) -> None:
        self.sent = await self.history('sent during wrong calls', True)
        self.batched = await self.history('batched during wrong calls', False)
        self.chunks = await self.stream()
        self.written = 0  # messages in that stream
        self.read = 0

    async def once(self) -> None:
        client = self.scene.client
        stop = threading.Event()
        async with (
            client.publisher(self.sent.stream, name='threads') as publisher,
            client.publisher(self.batched.stream, sub_entry_size=50, compression='gzip') as batches,
            client.subscribe(self.chunks, offset=rbs.Offset.offset(self.written)) as messages,
        ):
            self.read = self.written
            self.written += CHUNK
            await self.bed.write(self.chunks, range(self.read, self.written))
            await self.next(messages)
            calls = wrong_calls(client, publisher, batches, messages, self.chunks)
            thread = threading.Thread(target=self.misuse, args=(calls, stop), daemon=True)
            thread.start()
            try:
                for _ in range(CHUNK - 1):
                    await self.next(messages)
                    await self.publish(publisher, batches)
                    if self.scene.over():
                        break
            finally:
                stop.set()
                await asyncio.to_thread(thread.join)

    async def next(self, messages: rbs.Subscription) -> None:
        try:
            async with asyncio.timeout(CONFIRM):
                found = await anext(messages)
        except TimeoutError:
            self.wrong('no message arrived during wrong calls')
            raise rbs.MessageTimeout from None
        assert isinstance(found, bytes)
        if int(found) != self.read:
            self.wrong('messages lost during wrong calls', abs(int(found) - self.read))
        self.read = int(found) + 1

    async def publish(self, publisher: rbs.Publisher, batches: rbs.Publisher) -> None:
        for number in self.sent.take(1, SHARE):
            with suppress(rbs.PublishError):
                await publisher.send(body(number), timeout=CONFIRM)
                self.sent.note([number], CONFIRMED)
        numbers = self.batch(batches, self.batched, 100, SHARE)
        with suppress(rbs.PublishError):
            await batches.flush(timeout=CONFIRM)
            self.batched.note(numbers, CONFIRMED)

    def misuse(self, calls: dict[str, Callable[[], object]], stop: threading.Event) -> None:
        """Make wrong calls in the second thread until the event is set."""
        while not stop.is_set():
            for name, call in calls.items():
                try:
                    call()
                    outcome = 'accepted'
                except EventLoopError:
                    continue
                except Exception as ex:
                    outcome = f'{type(ex).__name__}({ex})'
                if not stop.is_set() and not self.is_closed(outcome):
                    self.wrong(f'{name} in a second thread: {outcome}')
            time.sleep(PAUSE)

    @staticmethod
    def is_closed(outcome: str) -> bool:
        """Whether the call failed because the main thread has closed its object."""
        return outcome.endswith('is closed)')


def wrong_calls(
    client: rbs.StreamsClient,
    publisher: rbs.Publisher,
    batches: rbs.Publisher,
    messages: rbs.Subscription,
    stream: str,
) -> dict[str, Callable[[], object]]:
    """Calls that only the event loop's thread may make, by name."""

    async def first(iterator: Any) -> object:
        async for item in iterator:
            return item
        return None

    def run(make: Callable[[], Awaitable[object]]) -> Callable[[], object]:
        async def call() -> object:
            async with asyncio.timeout(ANSWER):
                return await make()

        return lambda: asyncio.run(call())

    return {
        'send': run(lambda: publisher.send(STRANGE)),
        'submit': run(lambda: publisher.submit(STRANGE)),
        'send_many': run(lambda: publisher.send_many([STRANGE])),
        'batch': lambda: batches.batch(STRANGE),
        'flush': run(batches.flush),
        'anext': run(lambda: anext(messages)),
        'messages': run(lambda: first(messages.messages())),
        'batches': run(lambda: first(messages.batches())),
        'stream_exists': run(lambda: client.stream_exists(stream)),
        'write_offset': run(lambda: client.write_offset(stream, 'threads', 1)),
    }
