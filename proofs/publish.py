"""Proofs of publishing: the broker stores each confirmed message once and in order."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import rbfly.streams as rbs

from .checker import check_stored, copies, key_of
from .fault_injection import FaultInjection, Gate
from .history import CONFIRMED, REFUSED, UNKNOWN, History
from .run import ProofError, Run
from .test_bed import CONFIRM_DOWN, ENTRY_UP, Bed, ClusterBed, body
from .wiretap import Tap

BATCH = 1_000
NAME = 'proof'
GIVE_UP = 0.2  # share of messages with a timeout or a cancellation
PATIENCE = 0.0005, 0.005, 0.05, 0.5  # seconds until then
CANCEL_WINDOW = 100  # small, so that some sends wait for the window when they are cancelled
CANCEL_TASKS = 300
CANCEL_LAST = 0.005  # maximum seconds until a send is cancelled


@dataclass
class Sender:
    """Sends messages in the way that `--by` selects, and records their history.

    :ivar tap: sees the confirms.
    :ivar early: messages whose `send` has returned before the tap has seen their confirms.
    """

    run: Run
    publisher: Any
    gate: Gate
    history: History
    tap: Tap | None = None
    early: list[int] = field(default_factory=list)

    def report(self, numbers: Sequence[int], outcome: int) -> None:
        self.history.note(numbers, outcome)
        self.run.done += len(numbers)

    async def in_tasks(self, send: Callable[[bytes], Awaitable[int]], tasks: int) -> None:
        """Let many tasks send messages and record the outcome that `send` returns."""

        async def work() -> None:
            while (number := await self.gate.take()) is not None:
                self.history.send(number)
                outcome = await send(body(number))
                if self.tap and outcome == CONFIRMED and not self.tap.confirmed[number]:
                    self.early.append(number)
                self.report((number,), outcome)

        async with asyncio.TaskGroup() as group:
            for _ in range(tasks):
                group.create_task(work())

    async def by_send(self) -> None:
        """Send each message with `send`."""
        send = self.publisher.send

        async def confirmed(message: bytes) -> int:
            await send(message)
            return CONFIRMED

        await self.in_tasks(confirmed, self.run['tasks'])

    async def by_giving_up(self) -> None:
        """Like `by_send`, but many sends time out or are cancelled."""
        rnd, send = self.run.random, self.publisher.send

        async def impatient(message: bytes) -> int:
            chance, patience = rnd.random(), rnd.choice(PATIENCE)
            try:
                if chance < GIVE_UP / 2:
                    await send(message, timeout=patience)
                elif chance < GIVE_UP:
                    async with asyncio.timeout(patience):
                        await send(message)
                else:
                    await send(message)
            except rbs.ConfirmTimeout as ex:
                return REFUSED if ex.outcome == 'not_sent' else UNKNOWN
            except TimeoutError:  # cancelled
                return UNKNOWN
            return CONFIRMED

        await self.in_tasks(impatient, self.run['tasks'])

    async def by_flush(self) -> None:
        """Send batches of 1,000 messages, each confirmed before the next."""
        while (first := await self.gate.take()) is not None:
            numbers = range(first, first + 1 + self.gate.more(BATCH - 1))
            for number in numbers:
                self.history.send(number)
                self.publisher.batch(body(number))
            await self.publisher.flush()
            self.report(numbers, CONFIRMED)

    async def by_send_many(self) -> None:
        """Send all messages with one call, which returns when they are confirmed."""
        first = self.gate.next

        async def source() -> AsyncIterator[bytes]:
            while (number := await self.gate.take()) is not None:
                self.history.send(number)
                self.run.done = number
                yield body(number)

        count = await self.publisher.send_many(source())
        numbers = range(first, self.gate.next)
        if count != len(numbers):
            raise ProofError(f'send_many returned {count:,} instead of {len(numbers):,}')
        self.run.done = first
        self.report(numbers, CONFIRMED)

    async def send_all(self) -> None:
        ways = {
            'send': self.by_send,
            'flush': self.by_flush,
            'send-many': self.by_send_many,
            'giving-up': self.by_giving_up,
        }
        await ways[self.run['by']]()


def keyed(client: rbs.StreamsClient, stream: str, name: str | None) -> Any:
    """A publisher to a super stream, by key."""
    return client.super_stream(stream).publisher(name=name, route=rbs.by_hash(key_of))


@asynccontextmanager
async def publisher_to(
    bed: Bed, stream: str, name: str | None = None, *, by_key: bool = False, **options: Any
) -> AsyncIterator[Any]:
    """Open a client with a publisher, or with one to a super stream, by key."""
    async with bed.client() as client:
        opening = client.publisher(stream, name=name, **options)
        async with keyed(client, stream, name) if by_key else opening as publisher:
            yield publisher


async def publish(run: Run, bed: ClusterBed) -> None:
    """Publish all messages during faults, then check the stored messages."""
    total = run['messages']
    gate = Gate(total)
    faults = FaultInjection(run, bed, gate, {'up': total * ENTRY_UP, 'down': total * CONFIRM_DOWN})
    named = not run['unnamed']
    async with bed.stream() as stream:
        history = History('', stream, named, total, faults.epoch)
        async with (
            publisher_to(bed, stream, NAME if named else None) as publisher,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(faults.drive(stream))
            group.create_task(Sender(run, publisher, gate, history).send_all())
        run.check_returned()
        numbers, _ = await bed.stored(stream)
    crossed = len(set(numbers))
    up, down = sum(bed.carried('up')), sum(bed.carried('down'))
    run.check(
        'the traffic went through the proxies',
        up >= crossed * ENTRY_UP and down >= crossed * CONFIRM_DOWN,
        f'{up:,} bytes up, {down:,} down',
    )
    check_stored(run, history, [numbers], copies(history, cuts=faults.kind == 'cuts'))
    faults.check()


async def tasks(run: Run, bed: ClusterBed) -> None:
    """In each of many tasks, `send` returns after the confirm of its own message."""
    total = run['messages']
    tap = Tap(bed.proxies[0], total)
    async with bed.stream() as stream:
        history = History('', stream, True, total)
        async with publisher_to(bed, stream) as publisher:
            sender = Sender(run, publisher, Gate(total), history, tap)
            await sender.by_send()
        run.check_returned()
        numbers, _ = await bed.stored(stream)
    run.check(
        'every send returned after the confirm of its own message',
        tap.published == total and not sender.early,
        f'{tap.published:,} published, {len(sender.early):,} returned too early',
    )
    check_stored(run, history, [numbers])


async def cancels(run: Run, bed: ClusterBed) -> None:
    """Cancelled sends do not affect other messages, and their publishing ids are not reused."""
    rnd = run.random
    wanted, least = run['cuts'], run['messages']
    most = 10 * (wanted + least)
    tap = Tap(bed.proxies[0], most)
    gate = Gate(most)
    cancelled = Counter({'after turns': 0, 'after a time': 0})

    async with bed.stream() as stream:
        history = History('', stream, True, most)
        async with publisher_to(bed, stream, NAME, max_unconfirmed=CANCEL_WINDOW) as publisher:
            loop = asyncio.get_running_loop()

            async def send(message: bytes) -> int:
                """Send a message, and cancel the call in turn, later or not at all."""
                task = asyncio.create_task(publisher.send(message))
                how = rnd.choice(('', *cancelled)) if cancelled.total() < wanted else ''
                if how == 'after turns':
                    for _ in range(rnd.randrange(1, 5)):
                        await asyncio.sleep(0)
                    task.cancel()
                elif how:
                    loop.call_later(rnd.random() * CANCEL_LAST, task.cancel)
                await asyncio.wait([task])
                if not task.cancelled():
                    await task
                    return CONFIRMED
                cancelled[how] += 1
                if cancelled.total() == wanted:
                    gate.end = max(gate.next, least)
                return UNKNOWN

            sender = Sender(run, publisher, gate, history, tap)
            await sender.in_tasks(send, CANCEL_TASKS)
        numbers, _ = await bed.stored(stream)
    count = cancelled.total()
    run.found |= {
        'sent': gate.next,
        'cancelled': count,
        **{f'cancelled {how}': number for how, number in cancelled.items()},
    }
    run.check(f'{wanted:,} sends cancelled', count >= wanted, f'{count:,}')
    check_stored(run, history, [numbers], order='')
    run.check_none(
        'every other send returned after the confirm of its own message', len(sender.early)
    )
    run.check(
        'no publishing id was reused',
        tap.published >= len(numbers) and not tap.reused,
        f'{tap.published:,} published, {len(tap.reused):,} reused',
    )
