"""Proofs of consuming: each message arrives once and in order while others are published."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import rbfly.streams as rbs

from .checker import undelivered
from .fault_injection import FaultInjection, Gate
from .history import Delivery
from .processes import publishing
from .run import Run
from .test_bed import ENTRY_DOWN, ClusterBed, body

LEAD = 50_000  # maximum number of messages that the publisher is ahead
TICK = 0.001  # seconds

Messages = AsyncGenerator[tuple[Any, int], None]  # bodies and offsets


async def lead(run: Run, gate: Gate, limit: Any, ahead: int = LEAD) -> None:
    """Keep the publisher ahead of the consumer, but not too far."""
    while limit.value < gate.total:
        gate.next = run.done
        limit.value = min(gate.limit, run.done + ahead)
        await asyncio.sleep(TICK)


async def by_body(subscription: Any) -> Messages:
    """Read bodies with `async for` and offsets with `get_message_ctx`."""
    async for message in subscription:
        yield message, rbs.get_message_ctx().stream_offset


async def by_context(subscription: Any) -> Messages:
    """Read contexts with `messages`."""
    async for context in subscription.messages():
        yield context.body, context.stream_offset


async def by_batch(subscription: Any) -> Messages:
    """Read whole chunks with `batches`."""
    async for batch in subscription.batches():
        for pair in zip(batch, batch.offsets, strict=True):
            yield pair


WAYS: dict[str, Callable[[Any], Messages]] = {
    'body': by_body,
    'context': by_context,
    'batch': by_batch,
}


async def read_all(
    run: Run, client: rbs.StreamsClient, stream: str, delivery: Delivery | None = None
) -> bool:
    """Consume all messages; stop at the first whose body differs from the published one.

    :param delivery: records the messages.
    """
    total: int = run['messages']
    expected = 0
    wrong = ''
    async with (
        client.subscribe(stream, offset=rbs.Offset.FIRST) as subscription,
        aclosing(WAYS[run['by']](subscription)) as messages,
    ):
        async for message, offset in messages:
            if message != body(expected):
                wrong = f'received {message!r} instead of {expected:,}'
                break
            if delivery is not None:
                delivery.receive(stream, offset, expected)
            expected += 1
            run.done = expected
            if expected == total:
                break
    received = f'{expected:,} of {total:,}'
    run.check('each message arrived once and in order', expected == total, wrong or received)
    return expected == total


async def consume(run: Run, bed: ClusterBed) -> None:
    """Consume all messages during faults, and compare their offsets with the stored ones."""
    total = run['messages']
    gate = Gate(total)
    faults = FaultInjection(run, bed, gate, {'down': total * ENTRY_DOWN})
    delivery = Delivery()
    async with bed.stream() as stream, publishing(bed, stream, total) as limit:
        async with (
            bed.client() as client,
            asyncio.TaskGroup() as group,
        ):
            others = [
                group.create_task(lead(run, gate, limit)),
                group.create_task(faults.drive(stream)),
            ]
            if not await read_all(run, client, stream, delivery):
                for task in others:
                    task.cancel()
        stored = await bed.stored(stream)
    wrong = undelivered(delivery, {stream: stored})
    run.check_none('the messages and their offsets are those that are stored', wrong)
    down = sum(bed.carried('down'))
    run.check('the traffic went through the proxies', down >= total * ENTRY_DOWN, f'{down:,} bytes')
    faults.check()
