"""Proofs of consuming: each message arrives once and in order while others are published."""

import asyncio
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import rbfly.streams as rbs

from .fault_injection import (
    LEADER_FAULTS,
    NODE_FAULTS,
    Gate,
    change_leader,
    lose_node,
    note,
    plan_cuts,
    repeat,
    restart,
)
from .peers import publishing
from .publish import check_faults
from .run import ProofError, Run
from .site import ENTRY_DOWN, Site, body

__all__ = ['consume_cuts', 'consume_leader', 'consume_nodes', 'consume_restart', 'read_all']

LEAD = 50_000  # maximum number of messages that the publisher is ahead
TICK = 0.001  # seconds


async def lead(run: Run, gate: Gate, limit: Any, ahead: int = LEAD) -> None:
    """Keep the publisher ahead of the consumer, but not too far."""
    while limit.value < gate.total:
        gate.next = run.done
        limit.value = min(gate.limit, run.done + ahead)
        await asyncio.sleep(TICK)


async def by_body(subscription: Any) -> AsyncGenerator[tuple[Any, int], None]:
    """Read bodies with `async for` and offsets with `get_message_ctx`."""
    async for message in subscription:
        yield message, rbs.get_message_ctx().stream_offset


async def by_context(subscription: Any) -> AsyncGenerator[tuple[Any, int], None]:
    """Read contexts with `messages`."""
    async for context in subscription.messages():
        yield context.body, context.stream_offset


async def by_batch(subscription: Any) -> AsyncGenerator[tuple[Any, int], None]:
    """Read whole chunks with `batches`."""
    async for batch in subscription.batches():
        for pair in zip(batch, batch.offsets, strict=True):
            yield pair


WAYS: dict[str, Callable[[Any], AsyncGenerator[tuple[Any, int], None]]] = {
    'body': by_body,
    'context': by_context,
    'batch': by_batch,
}


async def read_all(
    run: Run, client: rbs.StreamsClient, stream: str, offsets: 'array[int] | None' = None
) -> bool:
    """Consume all messages; stop at the first whose body differs from the published one.

    :param offsets: receives the offsets of the messages.
    """
    if run['by'] not in WAYS:
        raise ProofError(f'unknown way of consuming --by {run["by"]}; use {", ".join(WAYS)}')
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
            if offsets is not None:
                offsets.append(offset)
            expected += 1
            run.done = expected
            if expected == total:
                break
    received = f'{expected:,} of {total:,}'
    run.check('each message arrived once and in order', expected == total, wrong or received)
    return expected == total


async def consume(
    run: Run, site: Site, drive: Callable[[Gate, str], Awaitable[None]] | None = None
) -> None:
    """Consume all messages during faults, and compare their offsets with the stored ones."""
    total = run['messages']
    gate = Gate(total)
    async with site.stream() as stream, publishing(site, stream, total) as limit:
        async with (
            rbs.streams_client(site.uris, connection_name='proof') as client,
            asyncio.TaskGroup() as group,
        ):
            feeder = group.create_task(lead(run, gate, limit))
            driver = group.create_task(drive(gate, stream)) if drive else None  # type: ignore[arg-type,var-annotated]
            offsets = array('q')
            if not await read_all(run, client, stream, offsets):
                for task in filter(None, (feeder, driver)):
                    task.cancel()
        _, stored = await site.stored(stream)
    run.check('offsets equal those of the stored messages', offsets == stored[: len(offsets)])
    down = sum(site.carried('down'))
    run.check('the traffic went through the proxies', down >= total * ENTRY_DOWN, f'{down:,} bytes')


async def consume_cuts(run: Run, site: Site) -> None:
    """Consume while connections are cut at random bytes."""
    plan_cuts(run, site.proxy, {'down': run['messages'] * ENTRY_DOWN})
    await consume(run, site)
    run.check(f'{run["cuts"]:,} cuts', site.proxy.cuts == run['cuts'], site.proxy.cuts)


async def consume_restart(run: Run, site: Site) -> None:
    """Consume while the broker is restarted."""
    await consume(run, site, repeat(run, site, restart))
    check_faults(run, 'restarts')


async def consume_nodes(run: Run, site: Site) -> None:
    """Consume while nodes of the cluster fail."""
    await consume(run, site, repeat(run, site, NODE_FAULTS[run['how']]))
    check_faults(run, 'faults')


async def consume_leader(run: Run, site: Site) -> None:
    """Consume while the leader and replicas of the stream fail, including the one in use."""

    def drive(gate: Gate, stream: str) -> Awaitable[None]:
        since = site.carried('down')

        async def fault(number: int) -> None:
            nonlocal since
            if number % 2 == 0:  # kill the node that delivers
                node = site.busiest('down', since)
                await lose_node(site, node, 'kill')
                leader = await site.leader(stream, replicated=True)
                note(run, 'leaders', f'kill of the delivering node {node + 1}; leader {leader + 1}')
            else:
                how = LEADER_FAULTS[number // 2 % len(LEADER_FAULTS)]
                await change_leader(run, site, stream, how)
            since = site.carried('down')

        return gate.drive(run, fault)

    await consume(run, site, drive)
    check_faults(run, 'leaders')
