"""Proof of consuming: invalid messages in a stream are reported, and valid ones still arrive."""

import asyncio
import gzip
from collections.abc import Iterator
from contextlib import aclosing, closing
from typing import Any

import rbfly.streams as rbs
from brokers import wire
from rbfly.error import AMQPDecoderError

from .consume import WAYS
from .run import Run
from .test_bed import Bed, body

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
    with closing(wire.Connection(uri, 'proof-publish')) as connection:
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


async def read(
    run: Run, subscription: rbs.Subscription, way: str, count: int
) -> tuple[list[Item], list[Item]]:
    """Read this many messages and errors; return the messages, and the data of the errors."""
    found: list[Item] = []
    errors: list[Item] = []
    while len(found) + len(errors) < count:
        try:
            async with aclosing(WAYS[way](subscription)) as messages:
                async for data, offset in messages:
                    found.append((offset, data))
                    run.done = len(found) + len(errors)
                    if run.done == count:
                        break
        except AMQPDecoderError as ex:
            errors.append((ex.offset, ex.data))
            run.done = len(found) + len(errors)
    return found, errors


async def consume_anything(run: Run, bed: Bed) -> None:
    """Every valid message arrives and every invalid one is reported, each with its offset."""
    stored = contents(run)
    encoded = [wire.data_section(body(i)) for i in range(len(stored))]
    valid = [(i, body(i)) for i, message in enumerate(stored) if message == encoded[i]]
    invalid = [(i, message) for i, message in enumerate(stored) if message != encoded[i]]
    raw = sorted([*valid, *invalid], key=lambda item: item[0])
    run.found |= {'valid': len(valid), 'invalid': len(invalid)}

    async with (
        bed.stream() as stream,
        bed.client() as client,
    ):
        await asyncio.to_thread(publish, bed.direct[0], stream, entries(run, stored))
        for way in WAYS:
            for policy in ('raise', 'skip', 'raw'):
                wanted = raw if policy == 'raw' else valid
                reported = invalid if policy == 'raise' else []
                async with client.subscribe(
                    stream, offset=rbs.Offset.FIRST, on_decode_error=policy
                ) as subscription:
                    found, errors = await read(run, subscription, way, len(wanted) + len(reported))
                run.check(
                    f'by {way}, on_decode_error={policy!r}: every valid message arrives, and every'
                    ' invalid one is handled as documented',
                    found == wanted and errors == reported,
                    f'{len(found):,} delivered, {len(errors):,} raised as errors',
                )
