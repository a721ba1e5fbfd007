"""Proof of consuming: invalid messages in a stream are reported, and valid ones still arrive."""

import asyncio
import gzip
from collections.abc import Callable, Iterator
from typing import Any

import rbfly.streams as rbs
from perf import wire
from rbfly.error import AMQPDecoderError

from .run import Run
from .site import Site, body

__all__ = ['consume_anything']

# A section without a descriptor, a boolean of 2, three invalid bytes, a huge array.
SHORT = (
    b'\x00',
    b'\x00\x53\x77\x56\x02',
    b'\xff\x00\xff',
    b'\x00\x53\x77\xf0' + b'\xff' * 8 + b'\x40',
)
DEEP = b'\x00\x53\x77' + b'\xc0\xff\x01' * 100_000  # nested lists
DEEP_ONE_IN = 1_000
FRAME = 500_000  # approximate bytes per frame
GZIP = 1

Item = tuple[int | None, Any]  # offset, and the body or the invalid bytes


def contents(run: Run) -> list[bytes]:
    """Messages to store; about half of them are valid and contain their number."""
    rnd = run.random
    found = []
    for number in range(run['messages']):
        if rnd.randrange(DEEP_ONE_IN) == 0:
            found.append(DEEP)
        elif rnd.random() < 0.5:
            found.append(rnd.choice(SHORT))
        else:
            found.append(wire.data_section(body(number)))
    return found


def entries(run: Run, messages: list[bytes]) -> Iterator[bytes]:
    """Encode the messages as entries and as plain and compressed sub-entries."""
    at = 0
    while at < len(messages):
        size, compression = run.random.choice(((1, None), (3, 0), (5, GZIP)))
        part = messages[at : at + size]
        if compression is None:
            yield wire.U32.pack(len(part[0])) + part[0]
        elif compression == GZIP:
            yield wire.sub_entry(part, GZIP, gzip.compress)
        else:
            yield wire.sub_entry(part)
        at += size


def publish(uri: str, stream: str, parts: Iterator[bytes]) -> None:
    """Publish encoded entries in frames, each confirmed before the next."""
    connection = wire.Connection(uri, 'proof-publish')
    try:
        connection.declare_publisher(stream)
        ids = 0
        found: list[bytes] = []
        for part in (*parts, b''):
            if part:
                found.append(wire.U64.pack(ids) + part)
                ids += 1
            if found and (not part or sum(map(len, found)) > FRAME):
                connection.publish([wire.entries_frame(found)], len(found), len(found))
                found.clear()
    finally:
        connection.close()


async def by_body(messages: Any) -> list[Item]:
    data = await anext(messages)
    return [(rbs.get_message_ctx().stream_offset, data)]


async def by_context(messages: Any) -> list[Item]:
    ctx = await anext(messages)
    return [(ctx.stream_offset, ctx.body)]


async def by_batch(messages: Any) -> list[Item]:
    batch = await anext(messages)
    return list(zip(batch.offsets, batch, strict=True))


WAYS: dict[str, tuple[Callable[[rbs.Subscription], Any], Any]] = {
    'bodies': (aiter, by_body),
    'contexts': (lambda subscription: subscription.messages(), by_context),
    'batches': (lambda subscription: subscription.batches(), by_batch),
}


async def consume_anything(run: Run, site: Site) -> None:
    """Every valid message arrives and every invalid one is reported, each with its offset."""
    stored = contents(run)
    valid = [
        (i, body(i)) for i, message in enumerate(stored) if message == wire.data_section(body(i))
    ]
    offsets = {i for i, _ in valid}
    invalid = [(i, message) for i, message in enumerate(stored) if i not in offsets]
    raw = sorted([*valid, *invalid], key=lambda item: item[0])
    run.found |= {'valid': len(valid), 'invalid': len(invalid)}

    async with (
        site.stream() as stream,
        rbs.streams_client(site.uris, connection_name='proof') as client,
    ):
        await asyncio.to_thread(publish, site.direct[0], stream, entries(run, stored))
        for how, (begin, take) in WAYS.items():
            for policy in ('raise', 'skip', 'raw'):
                wanted = {'raise': valid, 'skip': valid, 'raw': raw}[policy]
                reported = invalid if policy == 'raise' else []
                found: list[Item] = []
                errors: list[Item] = []
                async with client.subscribe(
                    stream,
                    offset=rbs.Offset.FIRST,
                    on_decode_error=policy,
                ) as subscription:
                    messages = begin(subscription)
                    while len(found) < len(wanted) or len(errors) < len(reported):
                        try:
                            found += await take(messages)
                        except AMQPDecoderError as ex:
                            errors.append((ex.offset, ex.data))
                        run.done = len(found) + len(errors)
                run.check(
                    f'{how}, on_decode_error={policy!r}: every valid message arrives, and every'
                    ' invalid one is handled as documented',
                    found == wanted and errors == reported,
                    f'{len(found):,} delivered, {len(errors):,} raised as errors',
                )
